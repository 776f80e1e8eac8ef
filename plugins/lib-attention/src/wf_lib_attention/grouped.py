"""Grouped-query attention for kernels that want as many key heads as query heads.

Query head ``h`` uses key head ``h // G``, with ``G = H / Hk`` (Ainslie et al., GQA, arXiv 2305.13245).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""``kernel(query, key, value, bias)``, all ``[B, H, L, D]`` -> ``[B, H, Lq, D]``."""


def is_shared(mask: tuple[int, ...] | None) -> bool:
    """Whether all batches and heads use one mask, so that the batch axis can be merged with the key heads."""
    return mask is None or all(size == 1 for size in mask[:-2])


def by_view(
    kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Key heads become batches, and the queries that share one become its heads; key and value are never repeated.

    ``query`` ``[B, H, Lq, D]``, ``key`` and ``value`` ``[B, Hk, Lk, D]``, ``bias`` shared. Merging B with Hk is a view
    for B = 1 and for ``[B, H, L, D]`` memory; otherwise it copies each key head once, G times less than repeating it.
    """
    batch, heads, rows, size = query.shape
    key_heads = key.shape[1]
    group = heads // key_heads
    merged = query.reshape(batch * key_heads, group, rows, size)
    key, value = (
        x.reshape(batch * key_heads, 1, *x.shape[2:]).expand(-1, group, -1, -1) for x in (key, value)
    )
    return kernel(merged, key, value, bias).reshape(batch, heads, rows, size)


def by_copy(
    kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Every key head is repeated for its group: for masks that differ between batches or heads."""
    group = query.shape[1] // key.shape[1]
    return kernel(query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), bias)


def by_fold(
    kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The queries that share a key head become one long sequence of it; key and value stay as they are.

    Exact, because each row of attention stands alone. ``bias`` or mask broadcasts to ``[B, H, Lq, Lk]``; its rows are
    repeated where it has rows of its own. ``query`` is copied where its heads do not lie behind each other.
    """
    batch, heads, rows, size = query.shape
    key_heads = key.shape[1]
    long = query.reshape(batch, key_heads, heads // key_heads * rows, size)
    if bias is not None:
        bias = folded_mask(bias, heads, key_heads, rows)
    return kernel(long, key, value, bias).reshape(batch, heads, rows, value.shape[-1])


def folded_mask(mask: torch.Tensor, heads: int, key_heads: int, rows: int) -> torch.Tensor:
    """``mask`` ``[B|1, H|1, Lq|1, Lk|1]`` -> the same for the scores ``[B, Hk, G * Lq, Lk]`` of folded queries."""
    group = heads // key_heads
    if mask.shape[1] == 1:
        return mask if mask.shape[2] == 1 else mask.repeat(1, 1, group, 1)
    full = mask.expand(-1, -1, rows, -1)
    return full.reshape(full.shape[0], key_heads, group * rows, full.shape[3])
