"""The hook serves every feature that the manifest declares."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import wf_plugin_attention_sdpa as plugin
from wf_plugin_attention_sdpa.providers import PROVIDERS

MANIFEST = tomllib.loads(Path(plugin.__file__).with_name("wf-plugin.toml").read_text())
FEATURES = {feature["name"]: feature for feature in MANIFEST["feature"]}


def test_features_and_providers_are_the_same():
    assert set(FEATURES) == set(PROVIDERS)


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_is_served_at_its_seam(name):
    built = plugin.wf_attention_provider(feature=name, options={}, facts=None)
    assert type(built) is PROVIDERS[name]
    assert set(built.handlers()) == set(FEATURES[name]["seams"])


def test_each_value_names_one_feature():
    values = [
        value for feature in FEATURES.values() for select in feature["select"] for value in select["values"]
    ]
    assert sorted(values) == sorted(set(values))
    assert {"sdpa", "torch", "cudnn", "efficient", "math", "torch_flash", "flex"} == set(values)


def test_auto_may_choose_what_keeps_the_result_and_prefers_torchs_own_choice():
    order = {
        name: select["order"]
        for name, feature in FEATURES.items()
        for select in feature["select"]
        if "auto" in select.get("groups", ())
    }
    assert sorted(order, key=order.get) == ["sdpa", "cudnn"]
