"""The gated residual ``x + out * gate``: in plain torch, by one kernel, and which calls the kernel can serve.

Shapes: x and out ``[B, L, D]``; gate fp32 ``[B, 1, D]``, ``[B, L, D]``, or ``[B, N, D]`` with ``index`` ``[B, L]``, the
row of each token; None for a plain sum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from wf_plugin_fused_wan import launching

ROWS, COLUMNS = 8, 1024
"""Of one program's tile, at most: a gate that all tokens share is read once for the rows of a tile."""


def reference(
    x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor | None
) -> torch.Tensor:
    """The stock expression: product and sum in fp32, each rounded there, and one rounding to x's dtype."""
    if gate is None:
        return x + out
    return (x.float() + out * launching.gathered(gate, index)).type_as(x)


def ineligible(
    x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor | None
) -> str:
    """Why the kernel cannot serve this call; "" when it can."""
    if x.ndim != 3 or x.shape != out.shape or x.dtype != out.dtype:
        return (
            f"the residual is {x.dtype} {list(x.shape)} and what is added to it {out.dtype} {list(out.shape)}"
        )
    return (
        launching.unfit("the residual", x, x)
        or launching.unfit("what is added", out, x)
        or (launching.unfit_rows("the gate", gate, index, x) if gate is not None else "")
        or launching.needs_gradient(x, out, gate)
    )


def launch(
    x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor | None
) -> torch.Tensor:
    """By the kernel: bit for bit the reference, contiguous. For calls that ``ineligible`` has nothing against."""
    return plan(x, out, gate, index)(x, out, gate, index)


def plan(
    x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor | None
) -> Callable[..., torch.Tensor]:
    """``launch`` for calls of these dtypes, shapes and strides, with all that follows from them computed."""
    from wf_plugin_fused_wan.modulation_kernels import gated_residual_kernel

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

    def run(
        x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor | None
    ) -> torch.Tensor:
        result = torch.empty((batch, tokens, width), dtype=x.dtype, device=x.device)
        arguments = (x, out, result, gate, index, *numbers)
        launching.launch(gated_residual_kernel, x.device, grid, arguments, constants)
        return result

    return run
