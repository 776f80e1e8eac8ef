"""Residuals in place: the stock bits, in a tensor of their own, and no cache sees another value."""

from __future__ import annotations

import pytest
import stock_typed
import torch
from fused_by_hand import ready

from support import models
from wf_core import Refused
from wf_core.api import Ineligible, Site
from wf_core.testing import host_of
from wf_plugin_fused_wan import gate as gates
from wf_plugin_fused_wan import gated_residual, inplace, norm_modulate
from wf_plugin_fused_wan.inplace import NOT_WRITTEN, InplaceResidual, bytes_avoided, rows_at_once
from wf_plugin_fused_wan.modulation import FusedModulation

ROLES = ("self", "cross", "ffn")
SELF, CROSS, FFN = (Site("gated_residual", role=role) for role in ROLES)
B, L, D = 2, 37, 8
PIECE = 4 * B * D * 5
"""Scratch for five rows, which do not divide L."""


@pytest.fixture(autouse=True)
def seeded_without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def stock(x, out, gate):
    return x + out if gate is None else (x.float() + out * gate).type_as(x)


def no_stock(x, out, gate):
    raise AssertionError("the stock residual was computed")


def drawn(dtype=torch.bfloat16, rows=L):
    return torch.randn(B, rows, D).to(dtype)


@pytest.fixture(params=[PIECE, 2**20], ids=["pieces", "whole"])
def add(request):
    return ready(InplaceResidual(request.param)).handlers()["gated_residual"]


@pytest.mark.parametrize("gate_rows", [1, L])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_block_gives_the_stock_bits(add, dtype, gate_rows):
    x, gates = drawn(dtype), [torch.randn(B, gate_rows, D) for _ in ROLES]
    outs, before = [drawn(dtype) for _ in ROLES], x.clone()
    expected = stock(stock(stock(x, outs[0], gates[0]), outs[1], None), outs[2], gates[2])
    first = add(no_stock, SELF, x, outs[0], gates[0])
    second = add(no_stock, CROSS, first, outs[1], None)
    third = add(no_stock, FFN, second, outs[2], gates[2])
    assert torch.equal(third, expected) and third.dtype == dtype
    assert torch.equal(x, before), "the input of the block is as it was"
    assert first is not x and second is first and third is first


def test_strides_are_the_stock_ones(add):
    x, out, gate = torch.randn(B, D, L).transpose(1, 2), drawn(torch.float32), torch.randn(B, 1, D)
    expected = stock(x, out, gate)
    ours = add(no_stock, SELF, x, out, gate)
    assert torch.equal(ours, expected) and ours.stride() == expected.stride()


def test_a_tensor_that_came_from_elsewhere_is_not_written_to(add):
    """A handler outside may have given another tensor on, such as one that it keeps."""
    add(no_stock, SELF, drawn(), drawn(), torch.randn(B, 1, D))
    for site, gate in ((CROSS, None), (FFN, torch.randn(B, 1, D))):
        x, out = drawn(), drawn()
        before = x.clone()
        ours = add(stock, site, x, out, gate)
        assert ours is not x and torch.equal(x, before)
        assert torch.equal(ours, stock(x, out, gate))


def test_a_dead_tensor_is_not_taken_for_the_one_at_its_address(add):
    gate = torch.randn(B, 1, D)
    for _ in range(20):
        add(no_stock, SELF, drawn(), drawn(), gate)  # its result dies here
        x = drawn()
        assert add(stock, CROSS, x, drawn(), None) is not x


def test_the_output_of_a_block_is_not_written_to_by_the_next(add):
    gate = torch.randn(B, 1, D)
    output = add(no_stock, FFN, add(no_stock, SELF, drawn(), drawn(), gate), drawn(), gate)
    kept = output.clone()
    following = add(no_stock, SELF, output, drawn(), gate)
    add(no_stock, FFN, following, drawn(), gate)
    assert torch.equal(output, kept)


def test_what_the_branch_gave_is_not_written_to(add):
    x, out, gate = drawn(), drawn(), torch.randn(B, 1, D)
    before = out.clone()
    add(no_stock, CROSS, add(no_stock, SELF, x, out, gate), out, None)
    assert torch.equal(out, before)


def test_a_branch_that_gives_its_input_back(add):
    own = add(no_stock, SELF, drawn(), drawn(), torch.randn(B, 1, D))
    expected = stock(own, own, None)
    assert torch.equal(add(no_stock, CROSS, own, own, None), expected)


@pytest.mark.parametrize(
    ("x", "out", "gate"),
    [
        (drawn(), drawn(torch.float32), None),
        (drawn(), drawn(), torch.randn(B, 1, D).bfloat16()),
        (drawn(torch.float64), drawn(torch.float64), torch.randn(B, 1, D)),
        (drawn(), drawn(rows=1), None),
        (drawn(), drawn(), torch.randn(1, 1, D)),
        (drawn()[0], drawn()[0], None),
    ],
    ids=["fp32 added to bf16", "gate in bf16", "fp64", "broadcast out", "broadcast gate", "two dimensions"],
)
def test_other_sums_are_left_to_the_stock_code(x, out, gate):
    technique, marker = ready(InplaceResidual()), object()
    assert technique.handlers()["gated_residual"](lambda *args: marker, SELF, x, out, gate) is marker
    assert not technique.counters.seen and sum(technique.counters.reasons.values()) == 1


@pytest.mark.parametrize("gate_rows", [1, L])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_of_the_models_dtype_are_added_in_it_as_stock_does(dtype, gate_rows):
    technique = ready(InplaceResidual(PIECE, family="cosmos"))
    add, x = technique.handlers()["gated_residual"], drawn(dtype)
    gates, outs = ([torch.randn(B, n, D).to(dtype) for _ in ROLES] for n in (gate_rows, L))
    ours, expected, before = x, x, x.clone()
    for site, out, gate in zip((SELF, CROSS, FFN), outs, gates, strict=True):
        ours, expected = add(no_stock, site, ours, out, gate), stock_typed.gated_residual(expected, out, gate)
    assert torch.equal(ours, expected) and ours.dtype == dtype and torch.equal(x, before)
    if dtype != torch.float32:  # fewer roundings would be other bits
        once = x
        for out, gate in zip(outs, gates, strict=True):
            once = stock(once, out, gate.float())
        assert not torch.equal(ours, once)
    size, piece = x.nbytes, x.element_size() * B * D * rows_at_once(x, PIECE, dtype)
    seen = {"fresh_adds": 1, "inplace_adds": 2, "bytes_avoided": 3 * (2 * size - piece) - size}
    assert technique.counters.seen == seen


def test_operands_of_several_dtypes_are_left_to_a_stock_code_that_keeps_the_widest():
    technique, marker = ready(InplaceResidual(family="hunyuan")), object()
    gate = torch.randn(B, 1, D)
    assert (
        technique.handlers()["gated_residual"](lambda *args: marker, SELF, drawn(), drawn(), gate) is marker
    )
    assert not technique.counters.seen and sum(technique.counters.reasons.values()) == 1


def at(path, role, index=0):
    return Site("gated_residual", "transformer", f"transformer_blocks.{index}.{path}", index, role)


STREAMS = {
    "one after the other": ("attn", "ff", "attn.to_add_out", "ff_context"),
    "in turn": ("attn", "attn.to_add_out", "ff", "ff_context"),
}


@pytest.mark.parametrize("order", STREAMS)
def test_each_stream_of_a_block_has_a_tensor_of_its_own(order):
    """Two calls of two blocks: what the first residual of a stream is given is kept, also by a block of its own."""
    technique = ready(InplaceResidual(family="hunyuan"))
    add = technique.handlers()["gated_residual"]
    given = {"": drawn(), "context": drawn()}
    for _ in range(2):
        for index in range(2):
            inputs, copies = dict(given), {name: x.clone() for name, x in given.items()}
            for path in STREAMS[order]:
                text = path in ("attn.to_add_out", "ff_context")
                stream, role = ("context", "text") if text else ("", "ffn" if path == "ff" else "joint")
                x, out, gate = given[stream], drawn(), torch.randn(B, 1, D).bfloat16()
                expected = stock_typed.gated_residual(x, out, gate)
                given[stream] = add(no_stock, at(path, role, index), x, out, gate)
                assert torch.equal(given[stream], expected)
                assert (given[stream] is x) == path.startswith("ff")
            assert all(torch.equal(inputs[name], copies[name]) for name in inputs)
    assert technique.counters.seen["inplace_adds"] == technique.counters.seen["fresh_adds"] == 8


def test_a_block_that_is_called_with_what_it_gave_does_not_write_over_it(add):
    """Also one that has a single residual, and one whose tokens come in two parts."""
    gate = torch.randn(B, 1, D)
    for paths in (("proj_out",), ("attn1", "ff"), ("attn1", "attn1", "ff", "ff")):
        x = drawn()
        for _ in range(3):
            before, kept = x, x.clone()
            for path in paths:
                x = add(no_stock, at(path, ""), x, drawn(), gate)
            assert x is not before and torch.equal(before, kept)


def test_the_other_parts_of_a_stream_do_not_end_the_block(add):
    gate, both = torch.randn(B, 1, D), drawn()
    parts = both[:, :9], both[:, 9:]
    image = [add(no_stock, at("attn", "joint"), part, torch.ones_like(part), gate) for part in parts]
    text = add(no_stock, at("attn.to_add_out", "text"), drawn(), drawn(), gate)
    for part in image:
        assert add(no_stock, at("ff", "ffn"), part, torch.ones_like(part), gate) is part
    assert add(no_stock, at("ff_context", "text"), text, drawn(), gate) is text


def test_gradients_are_refused(add):
    with torch.enable_grad(), pytest.raises(Ineligible, match="backward"):
        add(no_stock, SELF, drawn(), drawn().requires_grad_(), torch.randn(B, 1, D))


def test_counts():
    technique = ready(InplaceResidual(PIECE))
    add, gate = technique.handlers()["gated_residual"], torch.randn(B, 1, D)
    own = add(no_stock, SELF, drawn(), drawn(), gate)
    add(no_stock, FFN, add(no_stock, CROSS, own, drawn(), None), drawn(), gate)
    size = B * L * D
    gated = size * (4 + 4 + 4) - PIECE  # the copy, the product and the sum in fp32, less one piece
    assert technique.counters.seen == {
        "fresh_adds": 1,
        "inplace_adds": 2,
        "bytes_avoided": gated + 2 * size + (gated + 2 * size),
    }
    assert technique.evidence() == {}


def test_sizes():
    large = torch.empty(1, 75600, 5120, dtype=torch.bfloat16, device="meta")
    rows = rows_at_once(large, 64 * 2**20)
    assert rows == 3276
    assert rows_at_once(torch.empty(1, 75600, 1536, device="meta"), 64 * 2**20) == 4096
    assert rows_at_once(torch.empty(64, 9, 2**20, device="meta"), 64 * 2**20) == 1
    assert bytes_avoided(large, rows, fresh=True) == 12 * large.numel() - 4 * rows * 5120


# --- beside the fused kernel -----------------------------------------------------------------------------------------


@pytest.fixture
def beside(monkeypatch):
    """Both techniques of one session; what is inside the fused one is what the test says."""
    ours, fused = ready(InplaceResidual()), ready(FusedModulation())
    monkeypatch.setattr(inplace, "fused_modulation", lambda: fused)

    def add(site, x, out, gate, served=True):
        def inner(x, out, gate):
            return fused.gated_residual(no_stock, site, x, out, gate) if served else stock(x, out, gate)

        return ours.handlers()["gated_residual"](inner, site, x, out, gate)

    return ours, fused, add


def test_the_kernel_writes_where_it_is_told_to(beside):
    ours, fused, add = beside
    x, gate, outs = drawn(), torch.randn(B, 1, D), [drawn() for _ in ROLES]
    expected, before = stock(stock(stock(x, outs[0], gate), outs[1], None), outs[2], gate), x.clone()
    first = add(SELF, x, outs[0], gate)
    second = add(CROSS, first, outs[1], None)
    third = add(FFN, second, outs[2], gate)
    assert torch.equal(third, expected) and torch.equal(x, before)
    assert first is not x and second is first and third is first
    size = 2 * B * L * D
    assert ours.counters.seen == {"fresh_adds": 1, "inplace_adds": 2, "bytes_avoided": 2 * size}
    assert fused.counters.seen == {"reference_calls": 3} and not ours.counters.reasons


def test_the_kernel_writes_over_nothing_else(beside):
    ours, fused, add = beside
    own, other = add(SELF, drawn(), drawn(), None), drawn()
    before = other.clone()
    add(CROSS, other, drawn(), None)  # not what was made last
    fused.gated_residual(no_stock, SELF, own, drawn(), None)  # nobody said that it may
    assert torch.equal(other, before)
    assert ours.counters.seen["fresh_adds"] == 2 and "inplace_adds" not in ours.counters.seen


def test_a_residual_that_the_kernel_left_to_the_stock_code_is_a_fallback(beside):
    ours, _, add = beside
    own = add(SELF, drawn(), drawn(), None)
    assert add(CROSS, own, drawn(), None, served=False) is not own
    assert ours.counters.reasons == {("gated_residual", NOT_WRITTEN): 1}
    assert "inplace_adds" not in ours.counters.seen


# --- sessions -------------------------------------------------------------------------------------------------------

ON = {"inplace_residual": True}


@pytest.fixture(scope="module")
def host():
    caches = ("blocks", "taylorseer", "teacache", "adacache")
    return host_of("wf_plugin_fused_wan", "wf_plugin_wan", *(f"wf_plugin_cache_{name}" for name in caches))


def run(host, pipe, arguments, request):
    with host.session(pipe, request, verify_contents=True) as session:
        clip = session.pipe(**models.fresh(arguments)).frames
        assert session.held_bytes() == 0
        return clip, session.report


@pytest.mark.parametrize("recipe", ["t2v", "two_experts", "ti2v", "i2v", "vace"])
def test_a_clip_is_the_plain_clip(host, recipe):
    pipe, arguments = models.RECIPES[recipe](torch.bfloat16)
    arguments = {**arguments, "num_inference_steps": 2, "output_type": "latent"}
    clip, report = run(host, pipe, arguments, ON)
    assert torch.equal(clip, pipe(**models.fresh(arguments)).frames)
    found = report["effective"]["inplace-residual"]
    assert found["state"] == "effective" and not report["fallbacks"]
    assert found["evidence"]["inplace_adds"] == 2 * found["evidence"]["fresh_adds"]
    assert found["evidence"]["bytes_avoided"] > 0


CACHES = {
    "firstblock": {"residual_diff_threshold": 10.0, "first": 0},
    "dualblock": {"residual_diff_threshold": 10.0, "first": 0, "front_blocks": 1, "tail_blocks": 0},
    "dynamicblock": {"residual_diff_threshold": 10.0, "first": 0, "decide": "each-block"},
    "taylorseer": {"interval": 2, "first": 0, "last": 0},
    "blocktaylorseer": {"pattern": [True, False], "first": 0, "last": 0},
    "teacache": {"coefficients": [1.0, 0.0], "threshold": 10.0},
    "adacache": {"thresholds": [1.0], "rates": [2]},
}


@pytest.fixture(scope="module")
def pipes():
    """In fp32 without a norm before the cross-attention, what that one is given is the hidden states themselves."""
    return {"no cross norm": models.p1(cross_attn_norm=False), "vace": models.vace()[0]}


@pytest.mark.parametrize(
    ("cache", "shape"),
    [
        *((cache, "no cross norm") for cache in CACHES),
        *((cache, "vace") for cache in ("firstblock", "blocktaylorseer", "adacache")),
    ],
)
def test_a_cache_keeps_what_it_would_keep_without(host, pipes, cache, shape):
    pipe, arguments = pipes[shape], models.call(num_inference_steps=5)
    if shape == "vace":
        arguments["video"] = models.pictures(9, seed=13)
    request = {"feature_cache": {"algorithm": cache, **CACHES[cache]}}
    alone, _ = run(host, pipe, arguments, request)
    beside, report = run(host, pipe, arguments, {**request, **ON})
    assert torch.equal(alone, beside)
    assert report["effective"][cache]["evidence"]["skipped"] > 0
    assert report["effective"]["inplace-residual"]["evidence"]["inplace_adds"] > 0


ELSEWHERE = {"device.type": "cuda", "device.sm": 90, "package.triton": "3.6.0"}


@pytest.mark.parametrize("recipe", ["t2v", "ti2v", "vace"])
def test_beside_the_fused_kernels_both_take_effect(host, monkeypatch, recipe):
    """The references stand in for the kernels, as if there were a device for them."""
    monkeypatch.setattr(gates, "why_not", lambda device: "")
    for module in (gated_residual, norm_modulate):
        monkeypatch.setattr(
            module, "plan", lambda *args, m=module: lambda *args: m.reference(*args).contiguous()
        )
    pipe, arguments = models.RECIPES[recipe](torch.bfloat16)
    arguments = {**arguments, "num_inference_steps": 2, "output_type": "latent"}
    request = {"fused_modulation": True}
    with host.session(pipe, request, facts=ELSEWHERE) as session:
        alone = session.pipe(**models.fresh(arguments)).frames
        calls = session.report["effective"]["fused-modulation"]["evidence"]["gated_residual_calls"]
    with host.session(pipe, {**request, **ON}, facts=ELSEWHERE, verify_contents=True) as session:
        both = session.pipe(**models.fresh(arguments)).frames
        assert session.held_bytes() == 0
    effective = session.report["effective"]
    assert torch.equal(alone, both)
    assert {claim["state"] for claim in effective.values()} == {"effective"}
    assert not session.report["fallbacks"]
    found = effective["inplace-residual"]["evidence"]
    assert effective["fused-modulation"]["evidence"]["gated_residual_calls"] == calls
    assert (found["fresh_adds"], found["inplace_adds"]) == (calls // 3, 2 * calls // 3)


def test_a_run_with_gradients_is_refused(host):
    base = models.w().requires_grad_(True)
    with host.session(base, ON) as session, torch.enable_grad():
        with pytest.raises(Refused, match="WF-U001"):
            with session.run(num_inference_steps=1):
                session.model(**models.w_inputs())


def test_compiled_blocks_are_stock_and_the_report_says_so(host):
    torch._dynamo.reset()
    base, inputs = models.w(num_layers=2), models.w_inputs()
    plain = base(**inputs)[0]
    with host.session(base, ON) as session:
        for block in session.model.blocks:
            block.compile(backend="eager", fullgraph=True)
        with session.run(num_inference_steps=1):
            assert torch.equal(session.model(**inputs)[0], plain)
        found = session.report["effective"]["inplace-residual"]
    assert found["state"] == "inert" and "compiled" in found["evidence"]
