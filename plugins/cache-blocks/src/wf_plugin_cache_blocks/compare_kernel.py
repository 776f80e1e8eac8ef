"""The Triton kernel of `fused`. Imports triton: loaded at the first launch."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, untyped-decorator"
# Triton reads the annotations of arguments: what is no tl.constexpr has none.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def compare_kernel(
    x_ptr,
    kept_ptr,
    moved_ptr,
    sizes_ptr,
    elements,
    x_batch,
    x_token,
    x_channel,
    WIDTH: tl.constexpr,
    COMPARES: tl.constexpr,
    KEEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK`` elements of one sample: the sum of what they differ by from those kept, and their own; then they are
    kept. Positions in a sample are 32 bit, offsets in memory 64 bit.
    """
    part, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = part * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    token, channel = (at // WIDTH).to(tl.int64), (at % WIDTH).to(tl.int64)
    x = tl.load(x_ptr + batch * x_batch + token * x_token + channel * x_channel, mask=inside, other=0.0)
    kept_at = kept_ptr + batch * elements + at
    sum_at = batch * tl.num_programs(0) + part
    numbers = x.to(tl.float32)
    if COMPARES:
        older = tl.load(kept_at, mask=inside, other=0.0).to(tl.float32)
        tl.store(moved_ptr + sum_at, tl.sum(tl.abs(numbers - older), axis=0))
    if KEEPS:
        tl.store(kept_at, x, mask=inside)
        tl.store(sizes_ptr + sum_at, tl.sum(tl.abs(numbers), axis=0))
