"""The gated residual ``x + out * gate``: in plain torch, by one kernel, and which calls the kernel can serve.

Shapes: x and out ``[B, L, D]``; gate, in fp32 or x's dtype, ``[B, 1, D]``, ``[B, L, D]``, or ``[B, N, D]`` with
``index`` ``[B, L]``, the row of each token; None for a plain sum. With ``inplace`` the result is written over x, which
then must be contiguous.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from wf_plugin_fused_wan import launching

ROWS, COLUMNS = 8, 1024
"""Of one program's tile, at most: a gate that all tokens share is read once for the rows of a tile."""


def reference(
    x: torch.Tensor,
    out: torch.Tensor,
    gate: torch.Tensor | None,
    index: torch.Tensor | None,
    inplace: bool = False,
) -> torch.Tensor:
    """Product and sum in fp32, each rounded there, and one rounding to x's dtype. Wan's stock code has it so; that of
    Cosmos and HunyuanVideo rounds the product to x's dtype as well.
    """
    if gate is None:
        total = x + out
    else:
        total = (x.float() + out * launching.gathered(gate, index).float()).type_as(x)
    return x.copy_(total) if inplace else total


def ineligible(
    x: torch.Tensor,
    out: torch.Tensor,
    gate: torch.Tensor | None,
    index: torch.Tensor | None,
    inplace: bool = False,
) -> str:
    """Why the kernel cannot serve this call; "" when it can."""
    if x.ndim != 3 or x.shape != out.shape or x.dtype != out.dtype:
        return (
            f"the residual is {x.dtype} {list(x.shape)} and what is added to it {out.dtype} {list(out.shape)}"
        )
    if inplace and not x.is_contiguous():
        return "the residual is not contiguous, and the kernel writes contiguous tensors"
    return (
        launching.unfit("the residual", x, x, copied=True)
        or launching.unfit("what is added", out, x, copied=True)
        or (launching.unfit_rows("the gate", gate, index, x) if gate is not None else "")
        or launching.needs_gradient(x, out, gate)
    )


def launch(
    x: torch.Tensor,
    out: torch.Tensor,
    gate: torch.Tensor | None,
    index: torch.Tensor | None,
    inplace: bool = False,
) -> torch.Tensor:
    """By the kernel: bit for bit the reference, contiguous. For calls that ``ineligible`` has nothing against."""
    return plan(x, out, gate, index, inplace)(x, out, gate, index, inplace)


def plan(
    x: torch.Tensor,
    out: torch.Tensor,
    gate: torch.Tensor | None,
    index: torch.Tensor | None,
    inplace: bool = False,
) -> Callable[..., torch.Tensor]:
    """``launch`` for calls of these dtypes, shapes and strides, with all that follows from them computed."""
    from wf_plugin_fused_wan.modulation_kernels import gated_residual_kernel

    copied = x.stride(-1) != 1 or out.stride(-1) != 1
    x, out = launching.adjacent(x), launching.adjacent(out)
    batch, tokens, width = x.shape
    columns = min(COLUMNS, launching.power_above(width))
    gate_strides = launching.row_strides(gate, index) if gate is not None else (0, 0)
    strides = (x.stride(0), x.stride(1), out.stride(0), out.stride(1), *gate_strides)
    numbers = (tokens, *strides, 0 if index is None else index.stride(0))
    grid = (-(-tokens // ROWS), -(-width // columns), batch)
    constants = {
        "WIDTH": width,
        "GATED": gate is not None,
        "PER_TOKEN": gate_strides[1] != 0,
        "INDEXED": index is not None,
        "ROWS": ROWS,
        "BLOCK": columns,
        "num_warps": 4,
        "enable_fp_fusion": False,  # a fused multiply-add would skip the rounding that stock has after the product
    }

    go = launching.launcher(gated_residual_kernel, x.device, grid, constants)

    def run(
        x: torch.Tensor,
        out: torch.Tensor,
        gate: torch.Tensor | None,
        index: torch.Tensor | None,
        inplace: bool = False,
    ) -> torch.Tensor:
        if copied:
            x, out = launching.adjacent(x), launching.adjacent(out)
        # every element is read before it is written, by the same thread
        result = x if inplace else torch.empty_like(x, memory_format=torch.contiguous_format)
        go(x, out, result, gate, index, *numbers)
        return result

    return run
