"""Open mode is bit-identical to stock, per class and dtype, for each seam alone and for all together."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.counting import graphs_of_compiled
from wf_core.api import Site, Technique
from wf_core.testing import host_of
from wf_plugin_hunyuan.stock import blocks_of

KINDS = ("t2v", "concat", "replace", "1.5", "1.5-image")
OF_BLOCKS = ("branch", "norm_modulate", "gated_residual", "feed_forward")
OF_ATTENTION = ("attention", "qkv", "rope")
SEAMS = ("guidance", "denoiser", "stack", "block", "modulation", "linear", *OF_BLOCKS, *OF_ATTENTION)
INSIDE = (*OF_BLOCKS, "rope")
EXACT_15 = tuple(seam for seam in SEAMS if seam not in OF_ATTENTION)
"""On 1.5 an open attention gets no mask of all pairs, which is equal in mathematics and not in the last bits."""
TOKENS = 12
VALID_15 = {"1.5": 10, "1.5-image": 13}
"""Text tokens of the longest sample of 1.5: 8, 2 of ByT5, and those of an image."""
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


DOUBLE = {
    "norm_modulate": {"norm1": "joint", "norm1_context": "text", "norm2": "ffn", "norm2_context": "text"},
    "gated_residual": {"attn": "joint", "attn.to_add_out": "text", "ff": "ffn", "ff_context": "text"},
    "branch": {"attn": "joint", "ff": "ffn", "ff_context": "text"},
    "feed_forward": {"ff": "ffn", "ff_context": "text"},
}
SINGLE = {
    "norm_modulate": {"norm": "joint"},
    "gated_residual": {"proj_out": "joint"},
    "branch": {"proj_out": "joint"},
    "feed_forward": {},
}
"""Seam -> path below a block and role, of the sites of a block with two streams and of one with a single stream."""


def test_sites_of_blocks(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(case.model, *OF_BLOCKS)
    opened.once(case.call)
    doubles, singles = (3, 0) if case.kind.startswith("1.5") else (2, 2)
    for seam in OF_BLOCKS:
        paths = [("transformer_blocks", i, DOUBLE[seam]) for i in range(doubles)]
        paths += [("single_transformer_blocks", i, SINGLE[seam]) for i in range(singles)]
        expected = {(f"{where}.{i}.{path}", role) for where, i, s in paths for path, role in s.items()}
        assert {(site.path, site.role) for site, _ in opened.seen.of(seam)} == expected
        first = {site.index for site, _ in opened.seen.of(seam) if site.path.startswith("single")}
        assert first == (set(range(doubles, doubles + singles)) if SINGLE[seam] else set())


def test_tokens_at_the_sites_of_blocks(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    """A stream whose first frame is replaced goes through norm and residual in two parts, all else as one tensor."""
    opened = tiny.open(case.model, *OF_BLOCKS)
    opened.once(case.call)
    text, width = (15, 32) if case.kind.startswith("1.5") else (8, 20)
    frame = TOKENS // 2
    row = (2, 1, width)

    def found(seam: str, end: str) -> list[Any]:
        return [shapes for site, shapes in opened.seen.of(seam) if site.path == end]

    def parts(tokens: int) -> list[int]:
        return [frame, tokens - frame] if case.kind == "replace" else [tokens]

    streams = {"": (parts(TOKENS), TOKENS, TOKENS + text), "_context": ([text], text, None)}
    for suffix, (split, tokens, joint) in streams.items():
        out = "attn.to_add_out" if suffix else "attn"
        for norm, path in (("norm1", out), ("norm2", f"ff{suffix}")):
            norms = found("norm_modulate", f"transformer_blocks.0.{norm}{suffix}")
            assert [shapes[1:] for shapes in norms] == [((2, n, width), row, row) for n in split]
            adds = found("gated_residual", f"transformer_blocks.0.{path}")
            assert adds == [((2, n, width), (2, n, width), row) for n in split]
        assert found("branch", f"transformer_blocks.0.ff{suffix}") == [((2, tokens, width),)]
        ((_, shape),) = found("feed_forward", f"transformer_blocks.0.ff{suffix}")
        assert shape == (2, tokens, width)
        if joint:
            assert found("branch", "transformer_blocks.0.attn") == [((2, joint, width),)]
    if not case.kind.startswith("1.5"):
        norms = found("norm_modulate", "single_transformer_blocks.0.norm")
        assert [shapes[1] for shapes in norms] == [(2, n, width) for n in parts(TOKENS + text)]
        branch = found("branch", "single_transformer_blocks.0.proj_out")
        assert branch == [((2, TOKENS + text, width),)]


def test_the_image_is_rotated_and_text_is_not(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(case.model, "rope")
    opened.once(case.call)
    new = case.kind.startswith("1.5")
    text, width, blocks = (VALID_15[case.kind], 32, 3) if new else (8, 20, 4)
    image, beside = (2, TOKENS, width), (2, text, width)
    seen = [(site.role, *shapes[:2], shapes[4] is not None) for site, shapes in opened.seen.calls]
    assert seen == [("joint", image, image, True), ("text", beside, beside, False)] * blocks


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


@pytest.mark.parametrize("claimed", ["block", "attention"])
@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_nothing_of_a_call_is_kept_after_it_raised(kind: str, claimed: str, tiny: SimpleNamespace) -> None:
    def fail(inner: Any, site: Any, *args: Any) -> Any:
        raise RuntimeError("stop here")

    opened = tiny.open(tiny.model(kind), "stack", "branch", claims={claimed: fail})
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


class Through(Technique):
    """Passes everything through at some seams, and counts the calls of each."""

    def __init__(self, seams: tuple[str, ...]) -> None:
        self.calls = dict.fromkeys(seams, 0)

    def handlers(self) -> dict[str, Any]:
        return dict.fromkeys(self.calls, self._through)

    def _through(self, inner: Any, site: Site, *args: Any) -> Any:
        self.calls[site.seam] += 1
        return inner(*args)


@pytest.mark.parametrize(
    ("kind", "seams"), [("t2v", INSIDE), ("concat", INSIDE), ("replace", INSIDE), ("1.5", OF_BLOCKS)], ids=str
)
def test_a_session_with_open_blocks_is_bit_identical(
    kind: str, seams: tuple[str, ...], tiny: SimpleNamespace
) -> None:
    """In bfloat16; the kit's own checks run the first kind in float32."""
    through = Through(seams)
    pipe = tiny.pipe(kind, torch.bfloat16)
    given = {
        name: value.bfloat16() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in tiny.arguments(kind, num_inference_steps=2).items()
    }

    def call(on: Any) -> torch.Tensor:
        frames: torch.Tensor = on(**given, generator=torch.Generator().manual_seed(0)).frames
        return frames

    with host_of("wf_plugin_hunyuan").session(pipe, {}, extra={"through": through}) as session:
        ours = call(session.pipe)
    assert torch.equal(ours, call(pipe))
    assert all(through.calls.values()), through.calls


class InOneBlock(Technique):
    """Passes everything through, and wants one block alone."""

    def handlers(self) -> dict[str, Any]:
        return {"feed_forward": lambda inner, site, *args: inner(*args)}

    def wants(self, site: Site) -> bool:
        return site.index == 1


def test_a_claim_at_some_blocks_leaves_the_others_stock(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("t2v"), techniques={"mine": InOneBlock()})
    blocks = [block for block, _, _ in blocks_of(opened.components["transformer"])]
    assert ["forward" in block.__dict__ for block in blocks] == [False, True, False, False]


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_a_joint_branch_goes_on_in_both_streams(kind: str, tiny: SimpleNamespace) -> None:
    """What the branches of a block gave, given again in place of them: the same sample."""
    kept: dict[str, torch.Tensor] = {}
    model, call = tiny.model(kind), tiny.call(kind)

    def keep(inner: Any, site: Any, x: torch.Tensor) -> torch.Tensor:
        kept[site.path] = inner(x)
        return kept[site.path]

    def replace(inner: Any, site: Any, x: torch.Tensor) -> torch.Tensor:
        return kept[site.path] if site.index == 1 else inner(x)  # type: ignore[no-any-return]

    def without_text(inner: Any, site: Any, x: torch.Tensor) -> torch.Tensor:
        out = replace(inner, site, x)
        if (site.index, site.role) != (1, "joint"):
            return out
        return torch.cat([out[:, :TOKENS], out[:, TOKENS:] * 0], dim=1)

    stock = tiny.open(model, claims={"branch": keep}).once(call)
    assert torch.equal(tiny.open(model, claims={"branch": replace}).once(call), stock)
    assert not torch.equal(tiny.open(model, claims={"branch": without_text}).once(call), stock)


def test_compiled_blocks_share_their_graphs_and_bits(tiny: SimpleNamespace) -> None:
    """Not the first block, whose inputs have other strides, so that stock compiles it for itself, too."""
    model, call = tiny.model("replace", num_layers=3, num_single_layers=1), tiny.call("replace")
    through = {seam: lambda inner, site, *args: inner(*args) for seam in ("branch", "norm_modulate", "rope")}
    opened = tiny.open(model, claims=through)
    blocks = [block for block, _, _ in blocks_of(opened.components["transformer"])]
    graphs = graphs_of_compiled(blocks[1:])
    assert torch.equal(opened.once(call), model(**call)[0])
    assert len(graphs) == 2
