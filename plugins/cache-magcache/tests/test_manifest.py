"""What the manifest promises, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_cache_magcache"
ALLOW = {"request.allow_uncalibrated": False}
NAMED_ONLY = {"hunyuanvideo-540p"}
"""Presets of a model that has another by default: taken where a request names them."""


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, options, **facts):
    """The codes of the conditions of a feature that do not hold; options that are not given are at their defaults."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(ALLOW | {key.replace("_", ".", 1): value for key, value in facts.items()}, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


def effects(manifest, name):
    return {str(rule.effect) for rule in manifest.feature(name).effects}


def test_it_answers_to_its_own_key_and_to_the_selector(manifest):
    (switch,) = manifest.switches
    assert (switch.name, switch.form, switch.shorthand) == ("magcache", "feature", "threshold")
    assert manifest.feature("magcache").selects[0].values == ("magcache",)
    assert not manifest.feature("magcache").state


def test_a_model_without_ratios_is_refused_until_they_are_given(manifest):
    assert "WF-K010" in unmet(manifest, "magcache", {}, model_id="my-own-wan-finetune")
    allowed = {"model_id": "my-own-wan-finetune", "request_allow_uncalibrated": True}
    assert unmet(manifest, "magcache", {}, **allowed) == ["WF-K010"]
    for options in ({"ratios": (1.0, 0.99)}, {"preset": "own.json"}):
        assert unmet(manifest, "magcache", options, model_id="my-own-wan-finetune") == []


def test_ratios_and_a_preset_are_not_both_taken(manifest):
    both = {"ratios": (1.0, 0.99), "preset": "own.json"}
    assert unmet(manifest, "magcache", both, model_id="wan2.1-t2v-1.3b") == ["WF-K013"]


def test_borrowed_ratios_have_to_be_allowed(manifest):
    vace = {"model_id": "Wan2.1-VACE-14B"}
    assert unmet(manifest, "magcache", {}, **vace) == ["WF-K011"]
    assert unmet(manifest, "magcache", {}, request_allow_uncalibrated=True, **vace) == []


def test_what_belongs_to_given_ratios_is_refused_without_them(manifest):
    for options in ({"ratios_uncond": (1.0,)}, {"high_noise_steps": 4}):
        assert unmet(manifest, "magcache", options, model_id="wan2.1-t2v-1.3b") == ["WF-K012"]


def test_every_listed_model_has_ratios_for_every_step_of_both_branches(manifest):
    data = json.loads((PACKAGE / "presets.json").read_text(encoding="utf-8"))
    own = [json.loads(path.read_text(encoding="utf-8")) for path in (PACKAGE / "calibrated").glob("*.json")]
    presets = {preset["id"]: preset for file in [data, *own] for preset in file["presets"]}
    assert all(loan["preset"] in presets for loan in data["borrowed"].values())
    measured = [
        x for ids in data["calibrated"].values() for x in (ids.values() if isinstance(ids, dict) else [ids])
    ]
    assert {*measured} | NAMED_ONLY == {*presets}
    assert not {*measured} & NAMED_ONLY
    assert all(set(preset["models"]) & set(data["calibrated"]) for preset in presets.values())
    assert not set(data["calibrated"]) & set(data["borrowed"])
    for preset in presets.values():
        for ratios in (preset["ratios_cond"], preset["ratios_uncond"]):
            assert len(ratios) == preset["num_inference_steps"]
            assert ratios[0] == 1.0 and min(ratios) > 0


def test_the_schedule_is_equal_on_all_ranks(manifest):
    assert "rank-uniform-decision" in effects(manifest, "magcache")
