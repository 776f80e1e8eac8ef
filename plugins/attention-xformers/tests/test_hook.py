"""The hook serves every feature that the manifest declares."""

from __future__ import annotations

import tomllib
from pathlib import Path

import torch

import wf_plugin_attention_xformers as plugin
from wf_core.api import Facts
from wf_plugin_attention_xformers.provider import Xformers

MANIFEST = tomllib.loads(Path(plugin.__file__).with_name("wf-plugin.toml").read_text())
FEATURES = {feature["name"]: feature for feature in MANIFEST["feature"]}
FACTS = Facts.of({"model.head_dim": 96, "model.dtype": "float16"}, "test")


def test_the_feature_is_served_at_its_seam_and_probed_as_its_model_is():
    (name,) = FEATURES
    built = plugin.wf_attention_provider(feature=name, options={}, facts=FACTS)
    assert type(built) is Xformers
    assert set(built.handlers()) == set(FEATURES[name]["seams"])
    assert (built._head_dim, built._dtype) == (96, torch.float16)
