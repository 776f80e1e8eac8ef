"""In which dtype the models of a family compute their modulated norms and gated residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

IN_FP32 = {"wan": True, "cosmos": False, "hunyuan": False}
"""By family: in fp32 with one rounding to the dtype of the hidden states, or each step in the dtype of its operands."""


def in_fp32(family: str) -> bool:
    """Whether the models of a family compute them in fp32. Raises ``ValueError`` for a family that is not known."""
    if family not in IN_FP32:
        raise ValueError(f"how the model family {family!r} computes its norms and residuals is not known")
    return IN_FP32[family]


def alike(ineligible: Callable[..., str]) -> Callable[..., str]:
    """``ineligible``, and that operands of several dtypes are refused: where each step is in the dtype of its operands,
    the stock result would then be of another dtype than the hidden states, of which the kernel's is.
    """

    def why(x: torch.Tensor, *others: Any) -> str:
        tensors = [other for other in others if isinstance(other, torch.Tensor)]
        for tensor in tensors:
            if tensor.is_floating_point() and tensor.dtype != x.dtype:
                return f"the hidden states are {x.dtype} beside {tensor.dtype}, which would give the result its dtype"
        return ineligible(x, *others)

    return why
