"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
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
    assert unmet(manifest, name, {}, model_layers=30) == ["WF-K050"]
    assert unmet(manifest, name, {"residual_diff_threshold": 0.08}, model_layers=30) == []
    assert dict(manifest.feature(name).example)["feature_cache"]["residual_diff_threshold"] > 0


def test_dualblock_needs_blocks_that_it_could_skip(manifest):
    given = {"residual_diff_threshold": 0.08}
    assert set(unmet(manifest, "dualblock", given, model_layers=4)) == {"WF-K051"}
    assert unmet(manifest, "dualblock", {**given, "front_blocks": 1, "tail_blocks": 1}, model_layers=4) == []


@pytest.mark.parametrize("name", NAMES)
def test_they_decide_on_each_rank_alone_and_wait_for_the_device(manifest, name):
    found = effects(manifest, name)
    assert "rank-local-decision" in found
    assert any(effect.startswith("host-sync@") for effect in found)
