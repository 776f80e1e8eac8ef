"""Attention as one custom operator: what compiled code calls in place of a provider's Python.

A compiler cannot trace a provider (packages with kernels of their own, counters, a judgement per call), and need not.
The operator is opaque to it, has a fake that says what comes out, and finds the provider when it is called: no graph
break, one graph for every session with the same features, and exact counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.compiler import is_compiling

from wf_core.errors import Ineligible
from wf_core.kinds.serving import serving

if TYPE_CHECKING:
    from wf_core.kinds.techniques import AttentionProvider

__all__ = ["attend", "is_compiling"]


@torch.library.custom_op("wf::attend", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,))
def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, feature: str
) -> torch.Tensor:
    """``[B, Lq, H, D]``, ``[B, Lk, H, D]`` twice -> ``[B, Lq, H, D]``, contiguous, by the session's ``feature``."""
    provider = cast("AttentionProvider", serving(feature))
    try:
        out = provider.counted(query, key, value, mask)
    except Ineligible as why:
        if not provider.dense_when_ineligible:
            raise
        provider.counters.fall_back("attention", str(why))
        out = _stock(query, key, value, mask)
    return out.contiguous()


@attend.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, feature: str
) -> torch.Tensor:
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


def _stock(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """What the stock model computes: torch's own choice of a kernel."""
    return torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        mask,
        enable_gqa=query.shape[2] != key.shape[2],
    ).transpose(1, 2)
