"""``fused-modulation`` and ``fused-rope`` without a session: what they take, count, and do when a kernel fails."""

from __future__ import annotations

import pytest
import stock_wan
import torch
from fused_by_hand import ready

from wf_core.api import Ineligible, TokenRows
from wf_plugin_fused_wan import dispatch, gate, operators
from wf_plugin_fused_wan.modulation import FusedModulation
from wf_plugin_fused_wan.rope import FusedRope

X = torch.randn(1, 5, 48, generator=torch.Generator().manual_seed(0))
NORM = torch.nn.LayerNorm(48, elementwise_affine=False)
RMS = (torch.nn.RMSNorm(48), torch.nn.RMSNorm(48))


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def opened(monkeypatch):
    """As if Triton worked here: the reference stands in for the kernel."""
    monkeypatch.setattr(gate, "why_not", lambda device: "")

    def technique(kind=FusedModulation, launch=None, **options):
        ours = ready(kind(**options))
        for name in ("norms", "residuals", "rotations"):
            if hasattr(ours, name):
                kernel = getattr(ours, name).kernel
                run = launch or kernel.reference
                changed = dispatch.Kernel(
                    kernel.name, kernel.seam, kernel.reference, lambda *_, run=run: run, kernel.ineligible
                )
                setattr(ours, name, dispatch.Dispatch(changed))
        return ours

    return technique


def add(ours, x=X, gate=None):
    return ours.gated_residual(stock_wan.gated_residual, None, x, x, gate)


def test_without_triton_the_reference_computes_and_says_why():
    ours = ready(FusedModulation())
    assert torch.equal(add(ours), X + X)
    assert ours.counters.seen == {"reference_calls": 1}
    assert ours.evidence()["not_by_kernel"] == ["Triton kernels run on CUDA devices, and this call is on cpu"]


def test_each_kernel_counts_its_calls(opened):
    ours = opened()
    row = torch.ones(1, 1, 48)
    found = ours.norm_modulate(stock_wan.norm_modulate, None, NORM, X, row, row)
    assert torch.equal(found, stock_wan.norm_modulate(NORM, X, row, row))
    add(ours)
    add(ours, gate=row)
    assert ours.counters.seen == {"calls": 3, "norm_modulate_calls": 1, "gated_residual_calls": 2}


def test_a_norm_that_is_none_is_left_alone_and_not_counted(opened):
    ours = opened()
    assert ours.norm_modulate(stock_wan.norm_modulate, None, torch.nn.Identity(), X, None, None) is not None
    norms = (torch.nn.Identity(), torch.nn.Identity())
    rope = opened(FusedRope)
    rope.rope(stock_wan.norm_and_rotate, None, X, X, norms, 3, None)
    assert not ours.counters.seen
    assert not rope.counters.seen


def test_rows_by_index_are_handed_over_as_they_are(opened):
    ours = opened()
    few, index = torch.randn(1, 2, 48), torch.tensor([[0, 1, 1, 0, 1]])
    rows = TokenRows(few, index)
    assert torch.equal(add(ours, gate=rows), stock_wan.gated_residual(X, X, rows))
    found = ours.norm_modulate(stock_wan.norm_modulate, None, NORM, X, rows, rows)
    assert torch.equal(found, stock_wan.norm_modulate(NORM, X, rows, rows))
    one = TokenRows(few[:, :1], torch.zeros_like(index))
    assert torch.equal(add(ours, gate=one), stock_wan.gated_residual(X, X, one))


def test_a_call_that_the_kernel_cannot_serve_is_refused_with_the_reason(opened):
    with pytest.raises(Ineligible, match="float64"):
        add(opened(), X.double())
    with pytest.raises(Ineligible, match="not \\[1, 5, 1, 16\\]"):
        opened(FusedRope).rope(None, None, X, X, RMS, 3, (torch.zeros(1, 4, 1, 16),) * 2)


def test_a_kernel_that_fails_is_not_called_again_in_this_run(opened):
    calls = []

    def broken(*args):
        calls.append(args)
        raise ValueError("no such\ninstruction")

    ours = opened(launch=broken)
    assert torch.equal(add(ours), X + X)
    assert torch.equal(add(ours), X + X)
    why = "the kernel gated_residual failed: ValueError: no such instruction"
    assert len(calls) == 1
    assert ours.counters.reasons == {("gated_residual", why): 2}
    add(ours, torch.cat([X, X]))  # another signature
    assert len(calls) == 2
    ours.end()
    add(ours)
    assert len(calls) == 3
    assert "calls" not in ours.counters.seen


def test_a_signature_is_planned_once_and_told_apart_by_gradients(opened):
    ours, planned = opened(), []
    kernel = ours.residuals.kernel
    ours.residuals = dispatch.Dispatch(
        dispatch.Kernel(
            kernel.name,
            kernel.seam,
            kernel.reference,
            lambda *args: planned.append(args) or kernel.reference,
            kernel.ineligible,
        )
    )
    for x in (X, X.clone(), X[:, :4], X):
        add(ours, x)
    assert [len(args[0][0]) for args in planned] == [5, 4]
    with torch.enable_grad(), pytest.raises(Ineligible, match="gradient"):
        add(ours, X.clone().requires_grad_())


def test_out_of_memory_comes_through(opened):
    def full(*args):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        add(opened(launch=full))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_rotation_is_counted_and_nothing_is_kept_for_it(opened, precision):
    ours = opened(FusedRope, precision=precision)
    angles = torch.rand(1, 5, 1, 8).repeat_interleave(2, dim=-1)
    tables = (angles.cos(), angles.sin())
    for _ in range(3):
        found = ours.rope(None, None, X, X, RMS, 3, tables)
    stock = stock_wan.norm_and_rotate(X, X, RMS, 3, tables)
    torch.testing.assert_close(found, stock, rtol=1e-6, atol=1e-6)
    ours.rope(None, None, X, X[:, :2], RMS, 3, None)
    assert ours.counters.seen == {"calls": 4, "rope_calls": 4}
    assert ours.evidence() == {"precision": precision}
    assert not list(ours.held_tensors())


ROW = torch.ones(1, 1, 48)
CALLS = [
    (operators.norm_modulate, FusedModulation, (X, None, None, ROW, ROW, None, 1e-6)),
    (operators.gated_residual, FusedModulation, (X.transpose(0, 1), X.transpose(0, 1), None, None)),
    (
        operators.norm_rope,
        FusedRope,
        (X, X[:, :2], *(norm.weight for norm in RMS), 1e-6, 1e-6, 3, None, None),
    ),
]


@pytest.mark.parametrize(("operator", "kind", "args"), CALLS)
def test_an_operator_finds_its_technique_and_is_what_its_fake_says(monkeypatch, opened, operator, kind, args):
    ours = opened(kind)
    monkeypatch.setattr(operators, "serving", lambda feature: ours)
    torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))
    assert ours.counters.seen["calls"] >= 1


def test_an_operator_falls_back_only_where_the_request_allows_it(monkeypatch, opened):
    ours = opened()
    monkeypatch.setattr(operators, "serving", lambda feature: ours)
    with pytest.raises(Ineligible, match="float64"):
        operators.gated_residual(X.double(), X.double(), None, None)
    ours.dense_when_ineligible = True
    assert torch.equal(operators.gated_residual(X.double(), X.double(), None, None), X.double() * 2)
    assert [seam for seam, _ in ours.counters.reasons] == ["gated_residual"]


def test_compiled_code_calls_the_operators_without_a_break(monkeypatch, opened):
    ours, rope = opened(), opened(FusedRope)
    monkeypatch.setattr(operators, "serving", lambda feature: {"fused-rope": rope}.get(feature, ours))
    few, index = torch.randn(1, 2, 48), torch.tensor([[0, 1, 1, 0, 1]])

    def block(x, values, at):
        rows = TokenRows(values, at)
        y = ours.norm_modulate(stock_wan.norm_modulate, None, NORM, x, rows, rows)
        q, k = rope.rope(stock_wan.norm_and_rotate, None, y, y, RMS, 3, None)
        return ours.gated_residual(stock_wan.gated_residual, None, x, (q + k).flatten(2), rows)

    eager = block(X, few, index)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(X, few, index), eager)
    assert ours.counters.seen == {"calls": 6, "norm_modulate_calls": 3, "gated_residual_calls": 3}
    assert rope.counters.seen == {"calls": 3, "rope_calls": 3}


def test_where_each_step_has_the_dtype_of_its_operands_they_must_be_alike(opened):
    """A gate in fp32 would make the stock result of Cosmos or HunyuanVideo fp32, and that of Wan no other."""
    x, row = X.bfloat16(), torch.ones(1, 1, 48)
    for family in ("cosmos", "hunyuan"):
        ours = opened(family=family)
        with pytest.raises(Ineligible, match="which would give the result its dtype"):
            add(ours, x, row)
        with pytest.raises(Ineligible, match="which would give the result its dtype"):
            ours.norm_modulate(None, None, NORM, x, row.bfloat16(), row)
        assert add(ours, x, row.bfloat16()).dtype == x.dtype
        assert ours.norm_modulate(None, None, NORM, x, row.bfloat16(), row.bfloat16()).dtype == x.dtype
        assert ours.counters.seen["calls"] == 2
    assert add(opened(), x, row).dtype == x.dtype


def test_a_family_whose_arithmetic_is_not_known_is_an_error():
    with pytest.raises(ValueError, match="'ltx'"):
        FusedModulation("ltx")
