"""Open mode is tied to the stock source: anything else makes the seams unavailable, with a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import nn

from wf_plugin_wan import source

ROOT, BLOCK, ATTENTION = (
    set(s) for s in (source.SEAMS_OF_ROOT, source.SEAMS_OF_BLOCK, source.SEAMS_OF_ATTENTION)
)
SEAMS_OF = {
    "WanTransformer3DModel": ROOT,
    "WanTransformerBlock": BLOCK,
    "WanAttnProcessor": ATTENTION,
    "WanAttention": ATTENTION,
    "_get_qkv_projections": ATTENTION,
    "_get_added_kv_projections": ATTENTION,
}


def of_transformer(tiny: SimpleNamespace, model: Any) -> dict[str, str]:
    return dict(
        tiny.open(tiny.model("t2v")).family.unavailable_seams({"transformer": model, "vae": tiny.vae()})
    )


@pytest.mark.parametrize("kind", ["t2v", "i2v", "vace"])
def test_the_installed_source_is_tested(kind: str, tiny: SimpleNamespace) -> None:
    assert of_transformer(tiny, tiny.model(kind)) == {}
    assert of_transformer(tiny, tiny.open(tiny.model(kind)).components["transformer"]) == {}


@pytest.mark.parametrize("name", SEAMS_OF)
def test_another_source_makes_its_seams_unavailable(
    name: str, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(source.TESTED, name, frozenset({"0" * 64}))
    reason = f"untested diffusers version: source of {name} differs"
    assert of_transformer(tiny, tiny.model("t2v")) == dict.fromkeys(SEAMS_OF[name], reason)


def test_vace_depends_on_the_source_of_both_modules(
    tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(source.TESTED, "WanVACETransformerBlock", frozenset())
    assert set(of_transformer(tiny, tiny.model("vace"))) == BLOCK
    assert of_transformer(tiny, tiny.model("t2v")) == {}


def test_a_foreign_processor_or_block_is_named(tiny: SimpleNamespace) -> None:
    class OwnProcessor:
        pass

    model = tiny.copy(tiny.model("t2v"))
    model.blocks[0].attn1.processor = OwnProcessor()
    reasons = of_transformer(tiny, model)
    assert set(reasons) == ATTENTION
    assert "OwnProcessor" in reasons["attention"]
    model.blocks[1] = nn.Identity()
    reasons = of_transformer(tiny, model)
    assert set(reasons) == ATTENTION | BLOCK
    assert "Identity" in reasons["branch"]


def test_a_users_subclass_is_foreign_even_under_the_stock_name(tiny: SimpleNamespace) -> None:
    own = type("WanAttnProcessor", (WanAttnProcessor,), {"__module__": "mine"})
    model = tiny.copy(tiny.model("t2v"))
    model.blocks[0].attn2.processor = own()
    assert set(of_transformer(tiny, model)) == ATTENTION


def test_without_a_vae_its_seams_are_unavailable(tiny: SimpleNamespace) -> None:
    family = tiny.open(tiny.model("t2v")).family
    reasons = family.unavailable_seams({"transformer": tiny.model("t2v")})
    assert reasons == dict.fromkeys(("vae.decode", "vae.encode"), "the pipeline has no VAE")
