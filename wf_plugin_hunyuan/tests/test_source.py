"""Open mode is tied to the stock source: anything else makes the seams unavailable, with a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from wf_plugin_hunyuan import source
from wf_plugin_hunyuan.family import HunyuanFamily

ROOT, BLOCK, ATTENTION = (
    set(seams) for seams in (source.SEAMS_OF_ROOT, source.SEAMS_OF_BLOCK, source.SEAMS_OF_ATTENTION)
)
SEAMS_OF = {
    ("t2v", "HunyuanVideoTransformer3DModel"): ROOT | ATTENTION,
    ("t2v", "HunyuanVideoTransformerBlock"): BLOCK | ATTENTION,
    ("t2v", "HunyuanVideoSingleTransformerBlock"): BLOCK | ATTENTION,
    ("t2v", "HunyuanVideoAttnProcessor2_0"): ATTENTION,
    ("replace", "HunyuanVideoTokenReplaceTransformerBlock"): BLOCK | ATTENTION,
    ("replace", "HunyuanVideoTokenReplaceSingleTransformerBlock"): BLOCK | ATTENTION,
    ("t2v", "AdaLayerNormZero"): BLOCK,
    ("t2v", "AdaLayerNormZeroSingle"): BLOCK,
    ("replace", "HunyuanVideoTokenReplaceAdaLayerNormZero"): BLOCK,
    ("replace", "HunyuanVideoTokenReplaceAdaLayerNormZeroSingle"): BLOCK,
    ("1.5", "HunyuanVideo15Transformer3DModel"): ROOT | ATTENTION,
    ("1.5", "HunyuanVideo15TransformerBlock"): BLOCK | ATTENTION,
    ("1.5", "HunyuanVideo15AttnProcessor2_0"): ATTENTION,
}


def of_transformer(tiny: SimpleNamespace, model: Any) -> dict[str, str]:
    return dict(HunyuanFamily().unavailable_seams({"transformer": model, "vae": tiny.vae()}))


@pytest.mark.parametrize("kind", ["t2v", "concat", "replace", "1.5"])
def test_the_installed_source_is_tested(kind: str, tiny: SimpleNamespace) -> None:
    assert of_transformer(tiny, tiny.model(kind)) == {}
    assert of_transformer(tiny, tiny.open(tiny.model(kind)).components["transformer"]) == {}


@pytest.mark.parametrize(("kind", "name"), SEAMS_OF)
def test_another_source_makes_its_seams_unavailable(
    kind: str, name: str, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(source.TESTED, name, frozenset({"0" * 64}))
    reason = f"untested diffusers version: source of {name} differs"
    assert of_transformer(tiny, tiny.model(kind)) == dict.fromkeys(SEAMS_OF[kind, name], reason)


def test_every_tested_source_decides_something() -> None:
    assert {name for _, name in SEAMS_OF} == set(source.TESTED)


def test_a_foreign_processor_or_block_is_named(tiny: SimpleNamespace) -> None:
    class OwnProcessor:
        pass

    model = tiny.copy(tiny.model("t2v"))
    model.transformer_blocks[0].attn.processor = OwnProcessor()
    reasons = of_transformer(tiny, model)
    assert set(reasons) == ATTENTION
    assert "OwnProcessor" in reasons["attention"]
    model.single_transformer_blocks[0].norm = nn.LayerNorm(20)
    reasons = of_transformer(tiny, model)
    assert set(reasons) == BLOCK | ATTENTION
    assert "LayerNorm" in reasons["norm_modulate"]
    model.single_transformer_blocks[1] = nn.Identity()
    reasons = of_transformer(tiny, model)
    assert "Identity" in reasons["attention"]
    assert "Identity" in reasons["branch"]


def test_without_a_vae_its_seams_are_unavailable(tiny: SimpleNamespace) -> None:
    reasons = HunyuanFamily().unavailable_seams({"transformer": tiny.model("t2v")})
    assert reasons == dict.fromkeys(("vae.decode", "vae.encode"), "the pipeline has no VAE")
