"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_attention_xformers"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, facts, **options):
    """The codes of the conditions of a feature that these facts do not meet."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(facts, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


CARD = {
    "device.type": "cuda",
    "device.sm": 90,
    "package.xformers": "0.0.35",
    "model.dtype": "float32",
}


def test_it_is_asked_for_by_name_only(manifest):
    (feature,) = manifest.features
    assert [(select.values, select.groups) for select in feature.selects] == [(("xformers",), ())]
    assert feature.tier == "equivalent" and feature.bounds


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({}, []),
        ({"device.type": "cpu"}, ["WF-A060"]),
        ({"package.xformers": None}, ["WF-A062"]),
        ({"package.xformers": "0.0.28"}, ["WF-A062"]),
        ({"model.dtype": "float64"}, ["WF-A063"]),
    ],
    ids=str,
)
def test_conditions(manifest, change, codes):
    assert unmet(manifest, "xformers", CARD | change) == codes
