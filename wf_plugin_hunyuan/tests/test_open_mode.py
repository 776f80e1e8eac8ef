"""Open mode is bit-identical to stock, per class and dtype, for each seam alone and for all together."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

KINDS = ("t2v", "concat", "replace", "1.5", "1.5-image")
SEAMS = ("guidance", "denoiser", "stack", "block", "modulation", "attention", "qkv", "linear")
EXACT_15 = tuple(seam for seam in SEAMS if seam not in ("attention", "qkv"))
"""On 1.5 an open attention gets no mask of all pairs, which is equal in mathematics and not in the last bits."""
TOKENS = 12
BATCH = (5, 8)
"""Two samples of different text lengths: the stock forwards must be repeated for these, too."""


@pytest.fixture(
    scope="module",
    params=[(kind, dtype) for kind in KINDS for dtype in (torch.float32, torch.bfloat16)],
    ids=str,
)
def case(request: pytest.FixtureRequest, tiny: SimpleNamespace) -> SimpleNamespace:
    kind, dtype = request.param
    model, call = tiny.model(kind, dtype), tiny.call(kind, dtype, BATCH)
    seams = EXACT_15 if kind.startswith("1.5") else SEAMS
    stock = model(**call)[0]
    assert torch.isfinite(stock).all()
    return SimpleNamespace(kind=kind, dtype=dtype, model=model, call=call, seams=seams, stock=stock)


def test_each_seam_alone_is_bit_identical(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    for seam in case.seams:
        opened = tiny.open(case.model, seam)
        out = opened.once(case.call)
        assert opened.seen.of(seam), f"{seam} was claimed but never reached"
        assert out.dtype == case.dtype
        assert torch.equal(out, case.stock), seam


def test_all_seams_together_are_bit_identical(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(case.model, *case.seams)
    assert torch.equal(opened.once(case.call), case.stock)
    assert {site.seam for site, _ in opened.seen.calls} == set(case.seams)
    assert torch.equal(case.model(**case.call)[0], case.stock)
    assert not any("forward" in module.__dict__ for module in case.model.modules())


def test_sites_and_shapes(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(case.model, *case.seams)
    opened.once(case.call)
    new = case.kind.startswith("1.5")
    blocks, text, width = (3, 15, 32) if new else (4, 8, 20)
    sites = [site for site, _ in opened.seen.of("block")]
    assert [site.index for site in sites] == list(range(blocks))
    assert sites[-1].path == ("transformer_blocks.2" if new else "single_transformer_blocks.1")
    joint = ((2, TOKENS + text, width),)
    assert {shapes for seam in ("stack", "block") for _, shapes in opened.seen.of(seam)} == {joint}
    assert [shapes for _, shapes in opened.seen.of("modulation")] == [((2, width), (2, 6, width))]
    if not new:
        heads = (2, TOKENS + text, 2, 10)
        assert [shapes for _, shapes in opened.seen.of("attention")] == [
            (heads, heads, heads, (2, 1, 1, TOKENS + text))
        ] * blocks
        assert {site.role for site, _ in opened.seen.of("attention")} == {"joint"}


def test_without_a_claim_on_blocks_the_stack_is_the_image_alone(
    case: SimpleNamespace, tiny: SimpleNamespace
) -> None:
    opened = tiny.open(case.model, "stack")
    opened.once(case.call)
    width = 32 if case.kind.startswith("1.5") else 20
    assert [shapes for _, shapes in opened.seen.calls] == [((2, TOKENS, width),)]


def test_linear_sites_are_the_layers_of_the_blocks(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("t2v"), "linear")
    opened.once(tiny.call("t2v"))
    paths = {site.path for site, _ in opened.seen.of("linear")}
    layers = {
        name
        for name, module in tiny.model("t2v").named_modules()
        if isinstance(module, torch.nn.Linear) and "transformer_blocks" in name
    }
    assert paths == layers


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_a_skipped_stack_leaves_only_the_head(kind: str, tiny: SimpleNamespace) -> None:
    skipped = tiny.open(tiny.model(kind), "block", claims={"stack": lambda inner, site, x: x})
    call = tiny.call(kind)
    out = skipped.once(call)
    assert skipped.seen.calls == []
    other = {**call, "encoder_hidden_states": call["encoder_hidden_states"] + 1}
    assert torch.equal(out, skipped.once(other)), "text reaches the output through the blocks alone"
    assert not torch.equal(tiny.model(kind)(**call)[0], tiny.model(kind)(**other)[0])


@pytest.mark.parametrize("kind", ["t2v", "replace", "1.5-image"])
def test_a_block_replaced_by_its_own_residual_continues_both_streams(
    kind: str, tiny: SimpleNamespace
) -> None:
    """What a block added in one call, added again in place of the block: the same clip, since text goes on too."""
    kept: dict[int, torch.Tensor] = {}

    def keep(inner: Any, site: Any, joint: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = inner(joint)
        if site.index == 1:
            kept[1] = out
        return out

    def replace(inner: Any, site: Any, joint: torch.Tensor) -> torch.Tensor:
        return kept[1] if site.index == 1 else inner(joint)

    model, call = tiny.model(kind), tiny.call(kind)
    stock = tiny.open(model, claims={"block": keep}).once(call)
    ran = []
    opened = tiny.open(model, claims={"block": replace})
    block = opened.components["transformer"].transformer_blocks[1]
    block.register_forward_hook(lambda *_: ran.append(1))
    assert torch.equal(opened.once(call), stock)
    assert ran == []

    def image_only(inner: Any, site: Any, joint: torch.Tensor) -> torch.Tensor:
        if site.index != 1:
            return inner(joint)  # type: ignore[no-any-return]
        return torch.cat([kept[1][:, :TOKENS], joint[:, TOKENS:]], dim=1)

    assert not torch.equal(tiny.open(model, claims={"block": image_only}).once(call), stock)


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_nothing_of_a_call_is_kept_after_it_raised(kind: str, tiny: SimpleNamespace) -> None:
    def fail(inner: Any, site: Any, *args: Any) -> Any:
        raise RuntimeError("stop here")

    opened = tiny.open(tiny.model(kind), "stack", claims={"block": fail})
    call = tiny.call(kind)
    kept = [weakref.ref(value) for value in call.values() if isinstance(value, torch.Tensor)]
    with pytest.raises(RuntimeError, match="stop here"):
        opened.once(call)
    del call
    assert [ref() for ref in kept] == [None] * len(kept)


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_a_lora_scale_in_attention_kwargs_works_like_stock(kind: str, tiny: SimpleNamespace) -> None:
    peft = pytest.importorskip("peft")
    model, call = tiny.copy(tiny.model(kind)), tiny.call(kind)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    full, halved = model(**call)[0], model(**call, attention_kwargs={"scale": 0.5})[0]
    assert not torch.equal(full, halved)
    opened = tiny.open(model, "stack", "block")
    assert torch.equal(opened.once({**call, "attention_kwargs": {"scale": 0.5}}), halved)
    assert torch.equal(opened.once(call), full)


def test_a_meanflow_model_of_1_5(tiny: SimpleNamespace) -> None:
    model, call = tiny.model("1.5-image", use_meanflow=True), tiny.call("1.5-image")
    call["timestep_r"] = torch.tensor([250.0])
    stock = model(**call)[0]
    assert torch.equal(tiny.open(model, "stack").once(call), stock)
    assert not torch.equal(model(**{**call, "timestep_r": torch.tensor([0.0])})[0], stock)
