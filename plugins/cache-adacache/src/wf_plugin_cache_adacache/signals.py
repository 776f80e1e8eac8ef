"""What is measured of a block's gated self-attention output ``[B, L, D]``, on the device."""

from __future__ import annotations

import torch

from wf_core.api import relative_l1

GUARD = 1e-6
"""The least denominator of the motion, against an all-zero signal."""


def gated(out: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """``out * gate`` ``[B, L, D]`` as a tensor of its own, detached, in ``out``'s dtype.

    ``gate`` is ``[B, 1, D]`` or ``[B, L, D]``, None where the model has none.
    """
    if gate is None:
        return out.detach().clone()
    return (out * gate).detach().to(out.dtype)


def motion(signal: torch.Tensor, tokens: int) -> torch.Tensor:
    """How far each frame is from the one before it: ``[B, L, D]`` with ``tokens`` per frame -> ``[B]`` in fp32.

    ``sum |later - earlier| / (sum |later| + sum |earlier|)`` over all pairs of neighbours, between 0 and 1 (LightX2V's
    form of arXiv 2411.02397, section 3.3). L is a multiple of ``tokens``, of two frames at least.
    """
    later, earlier = signal[:, tokens:].float().flatten(1), signal[:, :-tokens].float().flatten(1)
    size = later.abs().mean(dim=1) + earlier.abs().mean(dim=1)
    return (later - earlier).abs().mean(dim=1) / size.clamp_min(GUARD)


def measure(signal: torch.Tensor, older: torch.Tensor, tokens: int) -> tuple[list[float], list[float] | None]:
    """Each sample's relative L1 change, and its motion where ``tokens`` is not 0. One wait for the device."""
    moved = relative_l1(signal, older)
    if not tokens:
        return moved.tolist(), None
    both: list[list[float]] = torch.stack([moved, motion(signal, tokens)]).tolist()
    return both[0], both[1]


def tokens_per_frame(signal: torch.Tensor, grid: tuple[int, int, int]) -> int:
    """Tokens of a latent frame, from the call's grid; 0 where there is but one, or the tokens are not the grid's."""
    frames, height, width = grid
    tokens = height * width
    return tokens if frames > 1 and signal.shape[1] == frames * tokens else 0
