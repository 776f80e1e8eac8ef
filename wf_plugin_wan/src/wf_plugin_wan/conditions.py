"""What a Wan transformer makes of timestep, text and image before its blocks, whole or time and text apart.

Shapes: timestep ``[B]`` -> temb ``[B, D]``, timestep_proj ``[B, 6, D]``; per token, timestep ``[B, L]`` -> ``[B, L,
D]`` and ``[B, L, 6, D]``. The context is ``[B, S, D]``, image tokens, if any, before the text tokens.
"""

from __future__ import annotations

from typing import Any

import torch


def embed_all(
    root: Any, timestep: torch.Tensor, text: torch.Tensor, image: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """temb, timestep_proj and the context, by the stock embedder."""
    length = timestep.shape[1] if timestep.ndim == 2 else None
    if length is not None:
        timestep = timestep.flatten()
    temb, proj, text, image = root.condition_embedder(timestep, text, image, timestep_seq_len=length)
    return temb, proj.unflatten(-1, (6, -1)), _context(text, image)


def embed_time(timestep: torch.Tensor, root: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """temb and timestep_proj alone, as the stock embedder computes them for text of ``dtype``."""
    embedder = root.condition_embedder
    sinus = embedder.timesteps_proj(timestep.flatten())
    if timestep.ndim == 2:
        sinus = sinus.unflatten(0, tuple(timestep.shape))
    weights = next(iter(embedder.time_embedder.parameters())).dtype
    if weights != torch.int8:
        sinus = sinus.to(weights)
    temb = embedder.time_embedder(sinus).to(dtype)
    return temb, embedder.time_proj(embedder.act_fn(temb)).unflatten(-1, (6, -1))


def embed_text(root: Any, text: torch.Tensor, image: torch.Tensor | None) -> torch.Tensor:
    """The context alone."""
    embedder = root.condition_embedder
    return _context(embedder.text_embedder(text), None if image is None else embedder.image_embedder(image))


def _context(text: torch.Tensor, image: torch.Tensor | None) -> torch.Tensor:
    return text if image is None else torch.concat([image, text], dim=1)
