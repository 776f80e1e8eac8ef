"""Open mode is bit-identical to stock, per generation and dtype, for each seam alone and for all together."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.counting import graphs_of_compiled

KINDS = ("p1", "p2", "p2.5", "transfer")
DTYPES = (torch.float32, torch.bfloat16)
SEAMS = (
    "guidance",
    "denoiser",
    "stack",
    "block",
    "time_embedding",
    "modulation",
    "branch",
    "norm_modulate",
    "gated_residual",
    "attention",
    "qkv",
    "feed_forward",
    "rope",
    "linear",
)
TOKENS = 12


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
    images = case.kind == "transfer"
    blocks = 3 if images else 2
    expected = {
        "guidance": 1,
        "denoiser": 1,
        "stack": 1,
        "block": blocks,
        "time_embedding": 1,
        "modulation": 1,
        "branch": 3 * blocks,
        "norm_modulate": 3 * blocks,
        "gated_residual": 3 * blocks,
        "attention": (3 if images else 2) * blocks,
        "qkv": blocks,
        "feed_forward": blocks,
        "rope": 2 * blocks,
        "linear": (19 if images else 16) * blocks,
    }
    assert {seam: len(opened.seen.of(seam)) for seam in SEAMS} == expected
    d = tiny.width
    x = (1, TOKENS, d)
    assert {shapes for seam in ("stack", "block", "branch") for _, shapes in opened.seen.of(seam)} == {(x,)}
    ((time, (timestep,)),) = opened.seen.of("time_embedding")
    assert (time.role, timestep) == ("frame", (1,) if case.kind == "p1" else (1, 2))
    ((_, signals),) = opened.seen.of("modulation")
    rows = 1 if case.kind == "p1" else TOKENS
    assert signals == (((1, d), (1, 3, d)) if case.kind == "p1" else (x, (1, TOKENS, 3, d)))
    for seam in ("gated_residual", "norm_modulate"):
        assert {(site.role, shapes[-1]) for site, shapes in opened.seen.of(seam)} == {
            (role, (1, rows, d)) for role in ("self", "cross", "ffn")
        }
    ropes = {site.role: (*shapes[:2], shapes[4] is not None) for site, shapes in opened.seen.of("rope")}
    assert ropes == {"self": (x, x, True), "cross": (x, (1, 8, d), False)}
    keys = {site.role: shapes[1] for site, shapes in opened.seen.of("attention")}
    own = {"self": (1, TOKENS, 2, 12), "cross": (1, 8, 2, 12)}
    assert keys == (own | {"image": (1, 5, 2, 12)} if images else own)


def test_linear_roles_are_the_paths_below_the_block(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("transfer"), "linear")
    run_once(opened, tiny.call("transfer"))
    roles = {site.role for site, _ in opened.seen.calls}
    assert {"attn1.to_q", "attn2.to_k", "attn2.to_v", "attn2.k_img", "norm1.linear_2", "ff.net.2"} <= roles
    assert {site.path for site, _ in opened.seen.calls if site.role == "attn1.to_out.0"} == {
        f"transformer_blocks.{i}.attn1.to_out.0" for i in range(3)
    }


def test_a_claim_for_one_role_leaves_the_other_attention_stock(tiny: SimpleNamespace) -> None:
    model = tiny.model("p2")
    opened = tiny.open(model, "attention", roles=("self",))
    run_once(opened, tiny.call("p2"))
    assert {site.role for site, _ in opened.seen.calls} == {"self"}
    block, stock = opened.components["transformer"].transformer_blocks[0], model.transformer_blocks[0]
    assert type(block.attn2.processor) is type(stock.attn2.processor)
    assert type(block.attn1.processor) is not type(stock.attn1.processor)


@pytest.mark.parametrize("seams", [("denoiser",), ("stack", "branch", "attention")])
def test_the_padding_mask_and_a_text_mask_are_handled_as_stock(
    seams: tuple[str, ...], torchvision: None, tiny: SimpleNamespace
) -> None:
    model, call = tiny.model("p1", concat_padding_mask=True), tiny.call("p1")
    call["padding_mask"] = (torch.arange(32 * 48) % 3).view(1, 1, 32, 48).float()
    call["attention_mask"] = torch.tensor([[True, True, True, False, True, True, False, False]])
    opened = tiny.open(model, *seams)
    out = run_once(opened, call)
    assert torch.equal(out, model(**call)[0])
    assert not torch.equal(out, model(**{**call, "attention_mask": None})[0])
    masks = {site.role: shapes[3] for site, shapes in opened.seen.of("attention")}
    assert masks == ({"self": None, "cross": (1, 1, 1, 8)} if "attention" in seams else {})


def test_the_stack_is_one_span_with_the_control_inside(tiny: SimpleNamespace) -> None:
    model, call = tiny.model("transfer"), tiny.call("transfer")
    skipped = tiny.open(model, "branch", claims={"stack": lambda inner, site, x: x})
    out = run_once(skipped, call)
    assert skipped.seen.calls == []
    other = {**call, "block_controlnet_hidden_states": [torch.ones(1, TOKENS, tiny.width)] * 2}
    assert torch.equal(out, run_once(skipped, other))
    assert not torch.equal(run_once(tiny.open(model), call), run_once(tiny.open(model), other))


def test_the_control_is_not_written_into_what_a_handler_keeps(tiny: SimpleNamespace) -> None:
    """The stock block adds in place to what its last residual gave it."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(inner: Any, site: Any, x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = inner(x, out, gate)
        kept.append((result, result.clone()))
        return result

    run_once(tiny.open(tiny.model("transfer"), claims={"gated_residual": keep}), tiny.call("transfer"))
    assert all(torch.equal(result, then) for result, then in kept)


def test_image_tokens_that_are_missing_or_unpaired_are_treated_as_stock(tiny: SimpleNamespace) -> None:
    model, call = tiny.model("transfer"), tiny.call("transfer")
    opened = tiny.open(model, "attention", "stack")
    without = {**call, "encoder_hidden_states": (call["encoder_hidden_states"][0], None)}
    assert torch.equal(run_once(opened, without), model(**without)[0])
    unpaired = {**call, "encoder_hidden_states": call["encoder_hidden_states"][0]}
    for root in (model, opened.components["transformer"]):
        with opened.run(), pytest.raises(ValueError, match="encoder_hidden_states"):
            root(**unpaired)


def test_nothing_of_a_call_is_kept_after_it_raised(tiny: SimpleNamespace) -> None:
    """The arguments that a span hides from its handlers are dropped, also on the way out of an exception."""

    def fail(inner: Any, site: Any, *args: Any) -> Any:
        raise RuntimeError("stop here")

    opened = tiny.open(tiny.model("p2"), "stack", "block", "branch", claims={"attention": fail})
    call = tiny.call("p2")
    kept = weakref.ref(call["encoder_hidden_states"])
    with pytest.raises(RuntimeError, match="stop here"):
        run_once(opened, call)
    del call
    assert kept() is None


def test_the_base_is_not_touched(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    run_once(tiny.open(case.model, *SEAMS), case.call)
    assert torch.equal(case.model(**case.call)[0], case.stock)
    assert not any("forward" in module.__dict__ for module in case.model.modules())


def test_compiled_blocks_share_one_graph_and_their_bits(tiny: SimpleNamespace) -> None:
    """More blocks than torch's recompile limit: a block must not be compiled anew because it is another block."""
    model, call = tiny.model("p2", num_layers=10), tiny.call("p2")
    opened = tiny.open(model, claims={"attention": lambda inner, site, *args: inner(*args)})
    graphs = graphs_of_compiled(opened.components["transformer"].transformer_blocks)
    assert torch.equal(run_once(opened, call), model(**call)[0])
    assert len(graphs) == 1
