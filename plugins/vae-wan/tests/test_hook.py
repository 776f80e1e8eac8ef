"""The hook serves every feature that the manifest declares, with the options that it declares."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import wf_plugin_vae_wan as plugin

MANIFEST = tomllib.loads(Path(plugin.__file__).with_name("wf-plugin.toml").read_text())
TYPES = {
    "vae-spatial-tiling": "TiledDecoder",
    "vae-temporal-chunk": "WindowedDecoder",
    "vae-autocast": "AutocastDecoder",
    "vae-channels-last": "ChannelsLastDecoder",
}


def test_the_manifest_declares_these_features():
    assert {feature["name"] for feature in MANIFEST["feature"]} == set(TYPES)


@pytest.mark.parametrize("feature", MANIFEST["feature"], ids=lambda feature: feature["name"])
def test_every_feature_is_built_from_its_defaults(feature):
    options = {option["name"]: option["default"] for option in feature.get("option", ())}
    built = plugin.wf_vae_decoder(feature=feature["name"], options=options, facts=None)
    assert type(built).__name__ == TYPES[feature["name"]]
    assert set(built.handlers()) == set(feature["seams"])
