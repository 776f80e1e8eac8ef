"""Layer norm with scale and shift: in plain torch, by one kernel, and which calls the kernel can serve.

Shapes: x ``[B, L, D]``; weight and bias ``[D]`` or None; scale and shift, in fp32 or x's dtype, ``[B, 1, D]``,
``[B, L, D]``, or ``[B, N, D]`` with ``index`` ``[B, L]``, the row of each token; None for the norm alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from wf_plugin_fused_wan import launching

PER_PROCESSOR = 8
"""Programs on each multiprocessor. That and the warps are what was fastest on an H200 at widths of 1536, 3072, 5120."""


def reference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    index: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """``norm(x) * (1 + scale) + shift`` in fp32 with one rounding to x's dtype. Wan's stock code has it so; that of
    Cosmos and HunyuanVideo rounds to x's dtype after the norm, the sum with 1, the product, and the sum.
    """
    weight = None if weight is None else weight.float()
    bias = None if bias is None else bias.float()
    normed = F.layer_norm(x.float(), x.shape[-1:], weight, bias, eps)
    if scale is None or shift is None:
        return normed.type_as(x)
    scale, shift = launching.gathered(scale, index).float(), launching.gathered(shift, index).float()
    return (normed * (1 + scale) + shift).type_as(x)


def ineligible(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    index: torch.Tensor | None,
    eps: float,
) -> str:
    """Why the kernel cannot serve this call; "" when it can."""
    if x.ndim != 3 or not 0 < x.shape[-1] <= launching.MOST_WIDTH:
        return f"the hidden states are {list(x.shape)}, and the kernel takes rows of up to {launching.MOST_WIDTH}"
    reason = launching.unfit("the hidden states", x, x, copied=True) or launching.needs_gradient(
        x, weight, bias, scale, shift
    )
    for name, vector in (("the norm's weight", weight), ("the norm's bias", bias)):
        if vector is not None and not reason:
            reason = launching.unfit(name, vector, x)
            if not reason and vector.shape != x.shape[-1:]:
                reason = f"{name} is {list(vector.shape)}, and the hidden states are {list(x.shape)}"
    for name, rows in (("the scale", scale), ("the shift", shift)):
        if rows is not None and not reason:
            reason = launching.unfit_rows(name, rows, index, x)
    if scale is not None and shift is not None and scale.shape[1] != shift.shape[1] and not reason:
        reason = f"the scale is {list(scale.shape)} and the shift {list(shift.shape)}"
    return reason


def launch(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    index: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """By the kernel, contiguous; sums in another order than torch's. For calls that ``ineligible`` lets through."""
    return plan(x, weight, bias, scale, shift, index, eps)(x, weight, bias, scale, shift, index, eps)


def plan(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    index: torch.Tensor | None,
    eps: float,
) -> Callable[..., torch.Tensor]:
    """``launch`` for calls of these dtypes, shapes and strides, with all that follows from them computed."""
    from wf_plugin_fused_wan.modulation_kernels import norm_modulate_kernel

    copied = x.stride(-1) != 1
    x = launching.adjacent(x)
    batch, tokens, width = x.shape
    modulated = scale is not None and shift is not None
    scale_strides = launching.row_strides(scale, index) if scale is not None else (0, 0)
    shift_strides = launching.row_strides(shift, index) if shift is not None else (0, 0)
    block = launching.power_above(width)
    numbers = (
        x.stride(0),
        x.stride(1),
        *scale_strides,
        *shift_strides,
        0 if index is None else index.stride(0),
    )
    grid = (min(tokens, launching.programs(x.device, PER_PROCESSOR)), batch)
    constants = {
        "WIDTH": width,
        "WEIGHTED": weight is not None,
        "BIASED": bias is not None,
        "MODULATED": modulated,
        "PER_TOKEN": modulated and scale_strides[1] != 0,
        "INDEXED": index is not None,
        "BLOCK": block,
        "num_warps": 2 if block <= 2048 else 4,
        "enable_fp_fusion": True,
    }

    go = launching.launcher(norm_modulate_kernel, x.device, grid, constants)

    def run(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: torch.Tensor | None,
        shift: torch.Tensor | None,
        index: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        if copied:
            x = launching.adjacent(x)
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        go(x, result, weight, bias, scale, shift, index, tokens, eps, *numbers)
        return result

    return run
