"""The manifest is valid, names every seam, and its facts are found on live models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from diffusers import WanPipeline

import wf_plugin_wan
from wf_core.api import SEAMS
from wf_core.testing import Manifest, facts_from_pipeline

MANIFEST = Manifest.load(Path(wf_plugin_wan.__file__).with_name("wf-plugin.toml"))


def test_the_manifest_names_every_seam_and_the_hook_gives_the_adapter() -> None:
    assert MANIFEST.family is not None
    assert set(MANIFEST.family.seams) == set(SEAMS)
    assert MANIFEST.family.instead["vae_tiling"] == "vae_spatial_tiling"
    assert type(wf_plugin_wan.wf_model_family()).__name__ == "WanFamily"


def test_facts_of_live_models(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanPipeline, tiny.model("ti2v"), tiny.vae(residual=True), expand_timesteps=True)
    facts = facts_from_pipeline(pipe, [MANIFEST])
    expected = {
        "model.family": "wan",
        "model.variant": "wan",
        "model.heads": 2,
        "model.head_dim": 12,
        "model.layers": 2,
        "model.channels_in": 48,
        "model.channels_out": 48,
        "model.text_dim": 32,
        "model.expand_timesteps": True,
        "model.vace_layers": (),
        "model.pixel_multiple": (32, 32),
        "vae.z_dim": 48,
        "vae.spatial_factor": 16,
        "vae.temporal_factor": 4,
    }
    assert {name: facts.get(name) for name in expected} == expected
    bare = facts_from_pipeline(tiny.model("vace"), [MANIFEST])
    assert (bare.get("model.variant"), bare.get("model.vace_layers")) == ("wan-vace", (0, 2))
