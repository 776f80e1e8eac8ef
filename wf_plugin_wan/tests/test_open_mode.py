"""Open mode is bit-identical to stock, per class and dtype, for each seam alone and for all together."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.models.transformers import transformer_wan

from support.counting import graphs_of_compiled
from wf_plugin_wan import open_attention

KINDS = ("t2v", "i2v", "ti2v", "vace")
DTYPES = (torch.float32, torch.bfloat16)
SEAMS = (
    "guidance",
    "denoiser",
    "stack",
    "block",
    "modulation",
    "branch",
    "norm_modulate",
    "gated_residual",
    "attention",
    "qkv",
    "feed_forward",
    "rope",
    "time_embedding",
    "linear",
)
GRID_TOKENS = 12


@pytest.fixture(scope="module", params=[(kind, dtype) for kind in KINDS for dtype in DTYPES], ids=str)
def case(request: pytest.FixtureRequest, tiny: SimpleNamespace) -> SimpleNamespace:
    kind, dtype = request.param
    model, call = tiny.model(kind, dtype), tiny.call(kind, dtype)
    return SimpleNamespace(kind=kind, dtype=dtype, model=model, call=call, stock=model(**call)[0])


def run_once(opened: Any, call: dict[str, Any]) -> torch.Tensor:
    with opened.run():
        out: torch.Tensor = opened.components["transformer"](**call)[0]
    return out


@pytest.mark.parametrize("seam", SEAMS)
def test_each_seam_alone_is_bit_identical(seam: str, case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(case.model, seam)
    out = run_once(opened, case.call)
    assert opened.seen.of(seam), "the seam was claimed but never reached"
    assert out.dtype == case.dtype
    assert torch.equal(out, case.stock)


def test_all_seams_together_are_bit_identical(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(case.model, *SEAMS)
    assert torch.equal(run_once(opened, case.call), case.stock)
    assert {site.seam for site, _ in opened.seen.calls} == set(SEAMS)


def test_sites_and_shapes(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(case.model, *SEAMS)
    run_once(opened, case.call)
    blocks = {"vace": 5}.get(case.kind, 2)  # three main blocks and two control blocks
    images = 2 if case.kind == "i2v" else 0
    linears = 10 * blocks + {"i2v": 2 * blocks, "vace": 3}.get(case.kind, 0)
    expected = {
        "guidance": 1,
        "denoiser": 1,
        "stack": 1,
        "block": 3 if case.kind == "vace" else 2,
        "modulation": 1,
        "branch": 3 * blocks,
        "norm_modulate": 3 * blocks,
        "gated_residual": 3 * blocks,
        "attention": 2 * blocks + images,
        "qkv": blocks,
        "feed_forward": blocks,
        "rope": 2 * blocks,
        "time_embedding": 1,
        "linear": linears,
    }
    assert {seam: len(opened.seen.of(seam)) for seam in SEAMS} == expected
    x = (1, GRID_TOKENS, tiny.width)
    assert {shapes for seam in ("stack", "block", "branch") for _, shapes in opened.seen.of(seam)} == {(x,)}
    ((_, signals),) = opened.seen.of("modulation")
    d = tiny.width
    per_token = ((1, GRID_TOKENS, d), (1, GRID_TOKENS, 6, d))
    assert signals == (per_token if case.kind == "ti2v" else ((1, d), (1, 6, d)))
    rows = GRID_TOKENS if case.kind == "ti2v" else 1
    gates = {site.role: shapes for site, shapes in opened.seen.of("gated_residual")}
    assert gates["self"] == gates["ffn"] == (x, x, (1, rows, d))
    assert gates["cross"] == (x, x, None)


def test_attention_sites_by_role(tiny: SimpleNamespace) -> None:
    model, call = tiny.model("i2v"), tiny.call("i2v")
    opened = tiny.open(model, "attention")
    run_once(opened, call)
    keys = {site.role: shapes[1] for site, shapes in opened.seen.of("attention")}
    heads = model.config.num_attention_heads
    assert keys == {
        "self": (1, GRID_TOKENS, heads, 12),
        "cross": (1, 512, heads, 12),
        "image": (1, 257, heads, 12),
    }
    assert [site.path for site, _ in opened.seen.of("attention")][:3] == [
        "blocks.0.attn1",
        "blocks.0.attn2",
        "blocks.0.attn2",
    ]
    assert {site.root for site, _ in opened.seen.calls} == {"transformer"}


def test_a_claim_for_one_role_leaves_the_other_attention_stock(tiny: SimpleNamespace) -> None:
    model = tiny.model("t2v")
    opened = tiny.open(model, "attention", roles=("self",))
    run_once(opened, tiny.call("t2v"))
    assert {site.role for site, _ in opened.seen.calls} == {"self"}
    block, stock = opened.components["transformer"].blocks[0], model.blocks[0]
    assert type(block.attn2.processor) is type(stock.attn2.processor)
    assert type(block.attn1.processor) is not type(stock.attn1.processor)


def test_stack_on_vace_is_one_span_with_the_hints_inside(tiny: SimpleNamespace) -> None:
    """A handler that skips the span skips control blocks, main blocks and hints alike: only the head is left."""
    model, call = tiny.model("vace"), tiny.call("vace")
    skipped = tiny.open(model, "branch", claims={"stack": lambda inner, site, x: x})
    out = run_once(skipped, call)
    assert skipped.seen.calls == []
    other_control = {**call, "control_hidden_states": torch.ones_like(call["control_hidden_states"])}
    assert torch.equal(out, run_once(skipped, other_control))
    assert not torch.equal(run_once(tiny.open(model), call), run_once(tiny.open(model), other_control))


def test_hints_are_added_outside_the_block_seam(tiny: SimpleNamespace) -> None:
    """With every main block skipped the control still reaches the output, through the hints."""
    model, call = tiny.model("vace"), tiny.call("vace")
    skipped = tiny.open(model, claims={"block": lambda inner, site, x: x})
    other_control = {**call, "control_hidden_states": torch.ones_like(call["control_hidden_states"])}
    assert not torch.equal(run_once(skipped, call), run_once(skipped, other_control))


@pytest.mark.parametrize("kind", KINDS)
def test_projections_fused_on_the_copy_are_used(kind: str, tiny: SimpleNamespace) -> None:
    model, call = tiny.model(kind), tiny.call(kind)
    opened = tiny.open(model, "attention", "rope")
    copied = opened.components["transformer"]
    copied.fuse_qkv_projections()
    for block in copied.blocks:
        block.attn1.to_q.weight = None  # the single projection would fail
    assert torch.equal(run_once(opened, call), model(**call)[0])


def test_the_stock_processors_backend_is_kept_and_obeyed(tiny: SimpleNamespace) -> None:
    base = tiny.copy(tiny.model("t2v"))
    base.blocks[0].attn1.processor._attention_backend = "_native_math"
    opened = tiny.open(base, "attention")
    blocks = opened.components["transformer"].blocks
    assert blocks[0].attn1.processor._attention_backend == "_native_math"
    assert blocks[1].attn1.processor._attention_backend is None
    blocks[1].attn2.processor._attention_backend = "no-such-backend"
    with pytest.raises(ValueError, match="no-such-backend"):
        run_once(opened, tiny.call("t2v"))


@pytest.mark.parametrize("kind", ["t2v", "vace"])
def test_the_stacks_input_has_the_stock_strides(kind: str, tiny: SimpleNamespace) -> None:
    """Equal values in another layout may take another kernel, and then differ in the last bits on another device."""
    strides: list[tuple[int, ...]] = []

    def note(inner: Any, site: Any, x: torch.Tensor) -> Any:
        strides.append(x.stride())
        return inner(x)

    model, call = tiny.model(kind), tiny.call(kind)
    opened = tiny.open(model, claims={"stack": note})
    stock = tiny.copy(model)
    stock.blocks[0].register_forward_pre_hook(lambda module, args: strides.append(args[0].stride()))
    run_once(opened, call)
    stock(**call)
    assert strides[0] == strides[1]


def test_the_parallel_configuration_reaches_self_attention_only(
    tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def dispatch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **more: Any) -> torch.Tensor:
        given.append((more.pop("parallel_config"), more))
        return query

    monkeypatch.setattr(transformer_wan, "dispatch_attention_fn", dispatch)
    monkeypatch.setattr(open_attention, "dispatch_attention_fn", dispatch)
    base, call = tiny.copy(tiny.model("i2v")), tiny.call("i2v")
    base.blocks[0].attn1.processor._parallel_config = base.blocks[0].attn2.processor._parallel_config = (
        "sharded"
    )
    base(**call)
    stock, given = given, []
    run_once(tiny.open(base, "attention"), call)
    assert given == stock
    assert [parallel for parallel, _ in given[:3]] == ["sharded", None, None]


def test_nothing_of_a_call_is_kept_after_it_raised(tiny: SimpleNamespace) -> None:
    """The arguments that a span hides from its handlers are dropped, also on the way out of an exception."""

    def fail(inner: Any, site: Any, *args: Any) -> Any:
        raise RuntimeError("stop here")

    opened = tiny.open(tiny.model("t2v"), "stack", "block", "branch", claims={"attention": fail})
    call = tiny.call("t2v")
    kept = weakref.ref(call["encoder_hidden_states"])
    texts: list[Any] = []
    embedder = opened.components["transformer"].condition_embedder.text_embedder
    embedder.register_forward_hook(lambda module, args, out: texts.append(weakref.ref(out)))
    with pytest.raises(RuntimeError, match="stop here"):
        run_once(opened, call)
    del call
    assert kept() is None
    assert [text() for text in texts] == [None]


def test_the_base_is_not_touched(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    run_once(tiny.open(case.model, *SEAMS), case.call)
    assert torch.equal(case.model(**case.call)[0], case.stock)
    assert not any("forward" in module.__dict__ for module in case.model.modules())


@pytest.mark.parametrize("seam", ["branch", "norm_modulate", "attention", "rope", "linear"])
def test_compiled_blocks_share_one_graph_and_their_bits(seam: str, tiny: SimpleNamespace) -> None:
    """More blocks than torch's recompile limit: a block must not be compiled anew because it is another block."""
    model, call = tiny.model("t2v", num_layers=10), tiny.call("t2v")
    opened = tiny.open(model, claims={seam: lambda inner, site, *args: inner(*args)})
    graphs = graphs_of_compiled(opened.components["transformer"].blocks)
    assert torch.equal(run_once(opened, call), model(**call)[0])
    assert len(graphs) == 1
