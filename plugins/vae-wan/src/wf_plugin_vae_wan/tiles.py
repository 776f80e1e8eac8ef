"""The geometry of spatial tiles along one axis. Plain numbers; nothing here knows of a VAE."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Span:
    """One tile along one axis: ``[start, end)``, and whether it has a neighbour before and after it."""

    start: int
    end: int
    before: bool
    after: bool


def spans(length: int, size: int, stride: int) -> list[Span]:
    """Tiles of ``size`` every ``stride`` over ``length``, up to the first that reaches the end.

    A plain loop over all starts would decode tails that lie inside the tile before them: 60 rows in tiles of 34 every
    18 start at 0, 18 and 36, and a start at 54 would add nothing.
    """
    starts = [0]
    while starts[-1] + size < length:
        starts.append(starts[-1] + stride)
    last = starts[-1]
    return [Span(start, min(start + size, length), start > 0, start < last) for start in starts]


def ramp(length: int, border: int, span: Span, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Weights ``[length]`` of a tile: 1, with a slope ``1/border, 2/border ...`` at each side that has a neighbour."""
    position = torch.arange(1, length + 1, dtype=dtype, device=device)
    weights = torch.ones_like(position)
    if border and span.before:
        weights = torch.minimum(weights, position / border)
    if border and span.after:
        weights = torch.minimum(weights, position.flip(0) / border)
    return weights
