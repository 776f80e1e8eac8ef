from __future__ import annotations

from pathlib import Path
from typing import Any

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_vae_preview" / "wf-plugin.toml")

PREVIEW = MANIFEST.features[0]


def states(**facts: Any) -> dict[str, str]:
    known = Facts.of(
        {"vae.z_dim": 48, **{name.replace("__", "."): item for name, item in facts.items()}}, "test"
    )
    return {
        item.code: item.judge(known, {"path": "taew2_2.safetensors"}).state for item in PREVIEW.conditions
    }


def test_it_is_declared_and_cannot_be_activated() -> None:
    assert (PREVIEW.name, PREVIEW.tier, PREVIEW.state) == (
        "vae-preview",
        "approximate",
        "unavailable: not implemented",
    )
    assert [rule.effect.name for rule in PREVIEW.effects] == ["replaces-decoder"]


def test_the_file_tells_its_latent_channels() -> None:
    (file,) = PREVIEW.files
    assert (file.option, file.facts) == ("path", (("preview.latent_channels", "decoder.1.weight", 1),))


def test_latent_channels_must_be_those_of_the_vae() -> None:
    assert states(preview__latent_channels=48)["WF-V007"] == "met"
    assert states(preview__latent_channels=16)["WF-V007"] == "unmet"
    assert states()["WF-V007"] == "unknown"
