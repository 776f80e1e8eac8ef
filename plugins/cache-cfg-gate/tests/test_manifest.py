"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import BadInput, Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_cache_cfg_gate"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, options, **facts):
    """The codes of the conditions of a feature that do not hold; options that are not given are at their defaults."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of({key.replace("_", ".", 1): value for key, value in facts.items()}, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


def effects(manifest, name):
    return {str(rule.effect) for rule in manifest.feature(name).effects}


def test_one_key_with_an_alias_and_full_guidance_as_the_off_value(manifest):
    (switch,) = manifest.switches
    assert (switch.name, switch.aliases, switch.form) == ("cfg_gate_step", ("cfg_gate_fraction",), "value")
    assert switch.off == (1.0,)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_a_share_lies_between_nothing_and_all(manifest, value):
    option = manifest.feature("cfg-gate").option("step")
    assert (option.convert(0, "cfg_gate_step"), option.convert(1.0, "cfg_gate_step")) == (0.0, 1.0)
    with pytest.raises(BadInput, match="cfg_gate_step"):
        option.convert(value, "cfg_gate_step")


def test_a_run_with_one_branch_has_nothing_to_save(manifest):
    assert unmet(manifest, "cfg-gate", {"step": 0.5}, run_branches=1) == ["WF-K060"]
    assert unmet(manifest, "cfg-gate", {"step": 0.5}, run_branches=2) == []


def test_a_share_of_nothing_leaves_no_difference_to_reuse(manifest):
    assert unmet(manifest, "cfg-gate", {"step": 0.0}, run_branches=2) == ["WF-K061"]


def test_it_leaves_room_for_a_cache_and_keeps_its_state_outside_a_captured_call(manifest):
    feature = manifest.feature("cfg-gate")
    assert feature.slot != "feature-cache"
    assert feature.seams == ("guidance",)
    inner = {effect for effect in effects(manifest, "cfg-gate") if effect.startswith(("host-", "holds-"))}
    assert inner == {"host-state@guidance", "holds-request-tensors@guidance"}
    assert "skips-guidance@guidance" in effects(manifest, "cfg-gate")
