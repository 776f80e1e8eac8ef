"""Open mode is tied to the stock source: anything else makes the seams unavailable, with a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from wf_plugin_cosmos import source
from wf_plugin_cosmos.family import CosmosFamily

ROOT, BLOCK, ATTENTION = (
    set(s) for s in (source.SEAMS_OF_ROOT, source.SEAMS_OF_BLOCK, source.SEAMS_OF_ATTENTION)
)
TIME = {"time_embedding"}
"""Opens the blocks and the norm of the head."""
SEAMS_OF = {
    "CosmosTransformer3DModel": ROOT,
    "CosmosTransformerBlock": BLOCK | TIME,
    "CosmosAdaLayerNormZero": BLOCK | TIME,
    "CosmosAdaLayerNorm": TIME,
    "CosmosAttnProcessor2_0": ATTENTION,
    "CosmosAttnProcessor2_5": ATTENTION,
}


def of_transformer(tiny: SimpleNamespace, model: Any) -> dict[str, str]:
    return dict(CosmosFamily().unavailable_seams({"transformer": model, "vae": tiny.vae("p1")}))


@pytest.mark.parametrize("kind", ["p1", "transfer"])
def test_the_installed_source_is_tested(kind: str, tiny: SimpleNamespace) -> None:
    assert of_transformer(tiny, tiny.model(kind)) == {}
    assert of_transformer(tiny, tiny.open(tiny.model(kind)).components["transformer"]) == {}


@pytest.mark.parametrize("name", SEAMS_OF)
def test_another_source_makes_its_seams_unavailable(
    name: str, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(source.TESTED, name, frozenset({"0" * 64}))
    reason = f"untested diffusers version: source of {name} differs"
    assert of_transformer(tiny, tiny.model("p1")) == dict.fromkeys(SEAMS_OF[name], reason)


def test_a_foreign_processor_or_block_is_named(tiny: SimpleNamespace) -> None:
    class OwnProcessor:
        pass

    model = tiny.copy(tiny.model("p1"))
    model.transformer_blocks[0].attn1.processor = OwnProcessor()
    reasons = of_transformer(tiny, model)
    assert set(reasons) == ATTENTION
    assert "OwnProcessor" in reasons["attention"]
    model.transformer_blocks[1] = nn.Identity()
    reasons = of_transformer(tiny, model)
    assert set(reasons) == ATTENTION | BLOCK | TIME
    assert "Identity" in reasons["branch"]
    model.norm_out = nn.Identity()
    assert set(of_transformer(tiny, model)) == ATTENTION | BLOCK | TIME


def test_a_block_of_a_control_network_is_not_opened(tiny: SimpleNamespace) -> None:
    model = tiny.copy(tiny.model("p1"))
    model.transformer_blocks[0].after_proj = nn.Linear(tiny.width, tiny.width)
    reasons = of_transformer(tiny, model)
    assert set(reasons) == BLOCK | TIME
    assert "control network" in reasons["branch"]


def test_without_a_vae_its_seams_are_unavailable(tiny: SimpleNamespace) -> None:
    reasons = CosmosFamily().unavailable_seams({"transformer": tiny.model("p1")})
    assert reasons == dict.fromkeys(("vae.decode", "vae.encode"), "the pipeline has no VAE")
