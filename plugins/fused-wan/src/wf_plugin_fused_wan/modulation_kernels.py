"""Triton kernels of the modulated norm and the gated residual. Imports triton: loaded at the first launch.

Offsets inside a row are 32 bit, those of rows and batches 64 bit: 75,600 rows of 8192 in two batches leave 31 bits.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, untyped-decorator"
# Triton reads the annotations of arguments: what is no tl.constexpr has none.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_modulate_kernel(
    x_ptr,
    result_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    index_ptr,
    tokens,
    eps,
    x_batch,
    x_token,
    scale_batch,
    scale_row,
    shift_batch,
    shift_row,
    index_batch,
    WIDTH: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    MODULATED: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    INDEXED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows, ``programs`` apart: ``norm(x) * (1 + scale) + shift``, mean and variance in two passes over
    registers. What all tokens share is read once per program, and a row is loaded while the one before is computed.
    """
    batch = tl.program_id(1).to(tl.int64)
    first, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    scale_at = scale_ptr + batch * scale_batch + columns if MODULATED else None
    shift_at = shift_ptr + batch * shift_batch + columns if MODULATED else None
    if WEIGHTED:
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if MODULATED and not PER_TOKEN:
        scale = tl.load(scale_at, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_at, mask=inside, other=0.0).to(tl.float32)

    x_at = x_ptr + batch * x_batch + columns
    x_step = batch * 0 + x_token  # 64 bit, as the interpreter's row is a number without a type
    following = tl.load(x_at + first * x_step, mask=inside, other=0.0)
    for row in range(first, tokens, programs):
        x = following.to(tl.float32)
        more = columns * 0 + (row + programs) < tokens
        following = tl.load(x_at + (row + programs) * x_step, mask=inside & more, other=0.0)
        if MODULATED and PER_TOKEN:
            at = batch * 0 + row
            if INDEXED:
                at = tl.load(index_ptr + batch * index_batch + row)
            scale = tl.load(scale_at + at * scale_row, mask=inside, other=0.0).to(tl.float32)
            shift = tl.load(shift_at + at * shift_row, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(x, 0) / WIDTH
        centred = tl.where(inside, x - mean, 0.0)
        variance = tl.sum(centred * centred, 0) / WIDTH
        y = centred * tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
        if WEIGHTED:
            y = y * weight
        if BIASED:
            y = y + bias
        if MODULATED:
            y = y * (1.0 + scale) + shift
        at_result = result_ptr + (batch * tokens + row) * WIDTH + columns
        tl.store(at_result, y.to(result_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gated_residual_kernel(
    x_ptr,
    out_ptr,
    result_ptr,
    gate_ptr,
    index_ptr,
    tokens,
    x_batch,
    x_token,
    out_batch,
    out_token,
    gate_batch,
    gate_row,
    index_batch,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    INDEXED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile of rows and columns: ``x + out * gate``. Must be compiled without fused multiply-adds."""
    batch = tl.program_id(2).to(tl.int64)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    wide = rows.to(tl.int64)
    inside = columns < WIDTH
    mask = (rows < tokens) & inside

    x = tl.load(x_ptr + batch * x_batch + wide * x_token + columns, mask=mask, other=0.0)
    out = tl.load(out_ptr + batch * out_batch + wide * out_token + columns, mask=mask, other=0.0)
    added = out.to(tl.float32)
    if GATED:
        at = wide
        if INDEXED:
            at = tl.load(index_ptr + batch * index_batch + wide, mask=rows < tokens, other=0)
        gate_at = gate_ptr + batch * gate_batch + columns
        if PER_TOKEN:
            gate = tl.load(gate_at + at * gate_row, mask=mask, other=0.0)
        else:
            gate = tl.load(gate_at, mask=inside, other=0.0, eviction_policy="evict_last")
        added = added * gate.to(tl.float32)
    total = x.to(tl.float32) + added
    at_result = result_ptr + (batch * tokens + wide) * WIDTH + columns
    tl.store(at_result, total.to(result_ptr.dtype.element_ty), mask=mask)
