"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import BadInput
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_cache_easycache"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def effects(manifest, name):
    return {str(rule.effect) for rule in manifest.feature(name).effects}


def test_it_is_selected_and_has_no_key_of_its_own(manifest):
    assert manifest.switches == ()
    assert manifest.feature("easycache").selects[0].values == ("easycache",)


def test_it_takes_the_published_settings_for_wan_and_needs_nothing_else(manifest):
    feature = manifest.feature("easycache")
    defaults = {option.name: option.default for option in feature.options}
    assert defaults == {"threshold": 0.05, "first": 10, "last": 1, "max_skip": None}
    assert feature.conditions == ()


def test_a_threshold_is_a_finite_number_and_zero_never_skips(manifest):
    option = manifest.feature("easycache").option("threshold")
    assert option.convert(0.0, "feature_cache.threshold") == 0.0
    for value in (-0.01, float("nan"), float("inf")):
        with pytest.raises(BadInput, match=r"feature_cache\.threshold"):
            option.convert(value, "feature_cache.threshold")


def test_it_stands_around_the_whole_transformer_and_decides_on_each_rank_alone(manifest):
    assert manifest.feature("easycache").seams == ("denoiser",)
    assert {"rank-local-decision", "host-state@denoiser"} <= effects(manifest, "easycache")
