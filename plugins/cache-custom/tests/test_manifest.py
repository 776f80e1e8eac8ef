"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_cache_custom"
ALLOW = {"request.allow_uncalibrated": False}
INSIDE = ("host-state@norm_modulate", "host-sync@norm_modulate", "holds-request-tensors@norm_modulate")
"""Where the first block's modulated input decides."""


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, options, **facts):
    """The codes of the conditions of a feature that do not hold; options that are not given are at their defaults."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(ALLOW | {key.replace("_", ".", 1): value for key, value in facts.items()}, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


def effects(manifest, name, family):
    """Those on a pipeline of a family."""
    known = Facts.of({"model.family": family, "pipeline.class": "SomePipeline"}, "test")
    rules = manifest.feature(name).effects
    return {
        str(rule.effect)
        for rule in rules
        if rule.when is None or rule.when.judge(known, {}, manifest.tables).state == "met"
    }


def test_it_is_selected_and_has_no_key_of_its_own(manifest):
    assert manifest.switches == ()
    assert manifest.feature("custom").selects[0].values == ("custom",)
    assert manifest.feature("custom").option("order").default == 1


def test_a_model_without_a_polynomial_is_refused_until_one_is_given(manifest):
    own = {"model_id": "my-own-wan-finetune"}
    assert unmet(manifest, "custom", {}, request_allow_uncalibrated=True, **own) == ["WF-K040"]
    assert unmet(manifest, "custom", {"coefficients": (1.0, 0.0)}, **own) == []


def test_a_borrowed_polynomial_has_to_be_allowed(manifest):
    assert unmet(manifest, "custom", {}, model_id="wan2.2-t2v-a14b") == ["WF-K041"]
    assert unmet(manifest, "custom", {}, model_id="wan2.2-t2v-a14b", request_allow_uncalibrated=True) == []
    assert unmet(manifest, "custom", {}, model_id="wan2.1-t2v-1.3b") == []


def test_a_signal_without_a_polynomial_and_two_polynomials_are_refused(manifest):
    only_e = {"model_id": "skyreels-v2-540p", "request_allow_uncalibrated": True}
    assert unmet(manifest, "custom", {"signal": "e0"}, **only_e) == ["WF-K042"]
    both = {"coefficients": (1.0,), "preset": "wan2.1-t2v-1.3b.e"}
    assert unmet(manifest, "custom", both, model_id="wan2.1-t2v-1.3b") == ["WF-K043"]


def test_all_ranks_decide_alike_from_the_time_embedding_and_not_from_the_latent(manifest):
    wan = effects(manifest, "custom", "wan")
    assert {
        "host-state@stack",
        "holds-request-tensors@stack",
        "rank-uniform-decision",
        "ranks-checked",
    } <= wan
    assert not {effect for effect in wan if effect.endswith("@norm_modulate")}
    assert not {"rank-local-decision", "host-sync@stack"} & wan
    another = effects(manifest, "custom", "another")
    assert "rank-uniform-decision" in another and "ranks-checked" not in another
    for family in ("hunyuan", "cosmos"):
        found = effects(manifest, "custom", family)
        assert {*INSIDE, "rank-local-decision"} <= found
        assert not {"host-state@stack", "host-sync@stack", "rank-uniform-decision", "ranks-checked"} & found


def test_each_family_has_its_signals(manifest):
    given = {"coefficients": (1.0,)}
    for family, signals in {"wan": ("e", "e0"), "hunyuan": ("block0",), "cosmos": ("block0",)}.items():
        assert unmet(manifest, "custom", given, model_id="own", model_family=family) == []
        for signal in ("e", "e0", "block0"):
            expected = [] if signal in signals else ["WF-K044"]
            asked = {**given, "signal": signal}
            assert unmet(manifest, "custom", asked, model_id="own", model_family=family) == expected
