"""What the manifest promises, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wf_core.api import BadInput, Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_cache_adacache"


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


def test_it_answers_to_its_own_key_and_to_the_selector(manifest):
    (switch,) = manifest.switches
    assert (switch.name, switch.form, switch.shorthand) == ("adacache", "feature", "threshold")
    assert manifest.feature("adacache").selects[0].values == ("adacache",)
    assert manifest.feature("adacache").state == ""


def test_a_codebook_is_named_or_given_whole(manifest):
    assert unmet(manifest, "adacache", {}) == []
    assert unmet(manifest, "adacache", {"rates": (3, 1)}) == ["WF-K021"]
    assert unmet(manifest, "adacache", {"thresholds": (0.1, 1.0), "rates": (3, 1)}) == []
    both = {"codebook": "fast", "thresholds": (0.1, 1.0), "rates": (3, 1)}
    assert unmet(manifest, "adacache", both) == ["WF-K022"]


def test_a_preset_is_a_codebook_and_stands_alone(manifest):
    assert unmet(manifest, "adacache", {"preset": "tiny-wan"}) == []
    assert unmet(manifest, "adacache", {"preset": "tiny-wan", "threshold": 0.1}) == []
    assert unmet(manifest, "adacache", {"preset": "tiny-wan", "codebook": "fast"}) == ["WF-K023"]
    own = {"thresholds": (0.1, 1.0), "rates": (3, 1)}
    assert unmet(manifest, "adacache", {"preset": "tiny-wan", **own}) == ["WF-K023"]


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), True, "much"])
def test_a_threshold_is_a_finite_number_of_zero_or_more(manifest, value):
    option = manifest.feature("adacache").option("threshold")
    with pytest.raises(BadInput):
        option.convert(value, "adacache")
    assert option.convert(0.0, "adacache") == 0.0


def test_the_watched_block_must_exist(manifest):
    assert unmet(manifest, "adacache", {"block": 30}, model_layers=30) == ["WF-K020"]
    assert unmet(manifest, "adacache", {"block": 29}, model_layers=30) == []


def test_every_codebook_that_can_be_named_is_shipped_and_well_formed(manifest):
    books = json.loads((PACKAGE / "codebooks.json").read_text(encoding="utf-8"))["codebooks"]
    assert sorted(books) == sorted(manifest.feature("adacache").option("codebook").choices)
    for book in books.values():
        assert len(book["thresholds"]) == len(book["rates"])
        assert book["thresholds"] == sorted(book["thresholds"])
        assert book["rates"] == sorted(book["rates"], reverse=True)


def test_it_decides_on_each_rank_alone(manifest):
    assert "rank-local-decision" in effects(manifest, "adacache")
