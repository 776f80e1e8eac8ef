"""Boolean masks as what the operators take: an additive bias.

The conversion is done by ``F.scaled_dot_product_attention`` and not by the operators under it: given the boolean
mask itself, ``aten::_scaled_dot_product_attention_math`` adds 1 to the scores that attend and returns a wrong result
without an error.
"""

from __future__ import annotations

import torch


def lift(mask: torch.Tensor) -> torch.Tensor:
    """A mask that broadcasts to ``[B, H, Lq, Lk]`` with its leading axes of size 1 written out."""
    return mask[(None,) * (4 - mask.dim())]


def additive(
    mask: torch.Tensor, dtype: torch.dtype, keys: int, blocked: float = -torch.inf, multiple: int = 1
) -> torch.Tensor:
    """``mask`` ``[B|1, H|1, Lq|1, Lk|1]`` -> bias of that shape with Lk written out: 0 where it attends.

    Rows start at multiples of ``multiple`` elements in memory, which the memory-efficient kernel needs of a bias.
    """
    mask = mask.expand(*mask.shape[:-1], keys)
    padded = -(-keys // multiple) * multiple
    bias = torch.zeros((*mask.shape[:-1], padded), dtype=dtype, device=mask.device)[..., :keys]
    return bias.masked_fill_(~mask, blocked)


def zero_empty_rows(out: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``out`` ``[B, H, Lq, D]`` with zeros in the rows that attend to nothing. No host synchronisation."""
    return out.masked_fill(~mask.any(dim=-1, keepdim=True), 0)
