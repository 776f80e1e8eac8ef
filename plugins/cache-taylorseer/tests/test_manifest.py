"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_cache_taylorseer"


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


def test_the_whole_stack_has_a_key_of_its_own_and_the_blocks_are_selected(manifest):
    (switch,) = manifest.switches
    assert (switch.name, switch.feature, switch.shorthand) == ("taylorseer", "taylorseer", "interval")
    values = [feature.selects[0].values for feature in manifest.features]
    assert values == [("taylorseer",), ("blocktaylorseer",)]


def test_one_step_in_four_is_computed_by_default(manifest):
    assert manifest.feature("taylorseer").option("interval").default == 4
    assert manifest.feature("blocktaylorseer").option("pattern").default == (True, False, False, False)


def test_a_pattern_needs_a_computed_step(manifest):
    assert unmet(manifest, "blocktaylorseer", {}) == []
    assert unmet(manifest, "blocktaylorseer", {"pattern": (False, False)}) == ["WF-K030"]


def test_both_fill_the_one_place_of_a_cache_and_are_equal_on_all_ranks(manifest):
    assert {feature.slot for feature in manifest.features} == {"feature-cache"}
    for feature in manifest.features:
        assert "rank-uniform-decision" in effects(manifest, feature.name)
