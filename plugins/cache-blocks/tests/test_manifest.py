"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import BadInput, Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_cache_blocks"


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


NAMES = ("firstblock", "dualblock", "dynamicblock")


def test_three_caches_share_the_one_place_of_a_cache(manifest):
    assert tuple(feature.name for feature in manifest.features) == NAMES
    assert [feature.selects[0].values for feature in manifest.features] == [(name,) for name in NAMES]
    assert {feature.slot for feature in manifest.features} == {"feature-cache"}


@pytest.mark.parametrize("name", NAMES)
def test_the_threshold_must_be_given(manifest, name):
    assert manifest.feature(name).option("residual_diff_threshold").default is None
    assert unmet(manifest, name, {}, model_blocks=30) == ["WF-K050"]
    assert unmet(manifest, name, {"residual_diff_threshold": 0.08}, model_blocks=30) == []
    assert dict(manifest.feature(name).example)["feature_cache"]["residual_diff_threshold"] > 0


def test_dualblock_needs_blocks_that_it_could_skip(manifest):
    given, few = {"residual_diff_threshold": 0.08}, {"model_layers": 30, "model_blocks": 4}
    assert unmet(manifest, "dualblock", given, **few) == ["WF-K051"]
    for front, tail, codes in ((4, 0, 1), (1, 3, 1), (2, 2, 1), (1, 2, 0), (3, 0, 0)):
        options = {**given, "front_blocks": front, "tail_blocks": tail}
        assert unmet(manifest, "dualblock", options, **few) == ["WF-K051"] * codes, options
    assert unmet(manifest, "dualblock", given, model_layers=4, model_blocks=30) == []


@pytest.mark.parametrize("name", NAMES)
def test_they_decide_on_each_rank_alone_and_wait_for_the_device(manifest, name):
    found = effects(manifest, name)
    assert "rank-local-decision" in found
    assert any(effect.startswith("host-sync@") for effect in found)


@pytest.mark.parametrize("name", NAMES)
def test_a_threshold_of_zero_is_legal_and_never_skips(manifest, name):
    assert unmet(manifest, name, {"residual_diff_threshold": 0.0}, model_blocks=30) == []
    assert manifest.feature(name).option("residual_diff_threshold").convert(0, "x") == 0.0
    for bad in (-1e-9, float("nan"), float("inf")):
        with pytest.raises(BadInput):
            manifest.feature(name).option("residual_diff_threshold").convert(bad, "x")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_opened_at_the_stack_and_decided_in_its_blocks(manifest, name):
    assert manifest.feature(name).seams == ("stack", "block")
    assert manifest.feature(name).state == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_on_skips_is_no_limit_unless_given(manifest, name):
    option = manifest.feature(name).option("max_skip")
    assert option.default is None and option.min == 1


def test_only_dynamicblock_says_when_it_decides(manifest):
    options = {name: {option.name for option in manifest.feature(name).options} for name in NAMES}
    assert options["dynamicblock"] - options["firstblock"] == {"decide"}
    assert options["dualblock"] - options["firstblock"] == {"front_blocks", "tail_blocks"}
    assert manifest.feature("dynamicblock").option("decide").default == "previous-call"
