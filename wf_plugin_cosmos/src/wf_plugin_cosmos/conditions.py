"""What a Cosmos transformer makes of timestep, text and image before its blocks.

Shapes: timestep ``[B]`` -> embedded timestep ``[B, D]`` and its projection ``[B, 3, D]``; per frame, timestep
``[B, T]`` -> ``[B, T, D]`` and ``[B, T, 3, D]``, and of these the rows of tokens, ``[B, L, D]`` and ``[B, L, 3, D]``.
"""

from __future__ import annotations

from typing import Any

import torch

from wf_core.api import TokenRows, dense
from wf_lib_family.rows import Row

Grid = tuple[int, int, int]
"""Frames, height and width after patching."""


def by_frame(timestep: torch.Tensor, batch: int, frames: int) -> torch.Tensor:
    """``[B, 1, T, 1, 1]`` -> ``[B, T]``; ``[B]`` as it is. Raises ``ValueError`` for any other shape."""
    if timestep.ndim == 1:
        return timestep
    if timestep.shape != (batch, 1, frames, 1, 1):
        raise ValueError(f"timestep must be [B] or [B, 1, T, 1, 1], got {list(timestep.shape)}")
    return timestep.flatten(1)


def embed_time(timestep: torch.Tensor, root: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The embedded timestep and its projection, as the stock code computes them for hidden states of x's dtype."""
    projection, embedded = root.time_embed(x, timestep.flatten())
    if timestep.ndim == 2:
        projection, embedded = (row.unflatten(0, timestep.shape) for row in (projection, embedded))
    return embedded, projection.unflatten(-1, (3, -1))


def of_tokens(embedded: Row, projection: Row, grid: Grid) -> tuple[Row, Row]:
    """The rows of frames as those of their tokens. ``TokenRows`` stay rows if both have one index, which the blocks
    then share.
    """
    if (
        isinstance(embedded, TokenRows)
        and isinstance(projection, TokenRows)
        and embedded.index is projection.index
    ):
        index = _spread(embedded.index, grid)
        return TokenRows(embedded.values, index), TokenRows(projection.values, index)
    return _spread(dense(embedded), grid), _spread(dense(projection), grid)


def _spread(rows: torch.Tensor, grid: Grid) -> torch.Tensor:
    """``[B, T, ...]`` -> ``[B, L, ...]``: what each frame has, for each of its tokens."""
    _, height, width = grid
    return rows.unsqueeze(2).expand(-1, -1, height * width, *rows.shape[2:]).flatten(1, 2)


def embed_text(root: Any, context: Any) -> Any:
    """The context of the blocks: text ``[B, S, D]``, or the pair of it and the image tokens, if it was given as one."""
    text, image = context if isinstance(context, tuple) else (context, None)
    if root.config.use_crossattn_projection:
        text = root.crossattn_proj(text)
    if image is not None and root.config.img_context_dim_in:
        image = root.img_context_proj(image)
    return (text, image) if isinstance(context, tuple) else text
