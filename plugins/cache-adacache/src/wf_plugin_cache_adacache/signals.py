"""What is measured of a block's gated self-attention output ``[B, L, D]``, on the device."""

from __future__ import annotations

import torch

from wf_core.api import mean_abs, relative_l1

GUARD = 1e-6
"""The least denominator of the motion, against an all-zero signal."""


def gated(out: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """``out * gate`` ``[B, L, D]`` as a tensor of its own, detached, in ``out``'s dtype.

    ``gate`` is ``[B, 1, D]`` or ``[B, L, D]``, None where the model has none.
    """
    if gate is None:
        return out.detach().clone()
    return (out * gate).detach().to(out.dtype)


def whole(parts: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """The signal of all tokens, of parts ``[B, L', D]`` one after another; None where nothing was seen."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return torch.cat(parts, dim=1)


def motion(signal: torch.Tensor, tokens: int) -> torch.Tensor:
    """How far each frame is from the one before it: ``[B, L, D]`` with ``tokens`` per frame -> ``[B]`` in fp32.

    ``sum |later - earlier| / (sum |later| + sum |earlier|)`` over all pairs of neighbours, between 0 and 1 (LightX2V's
    form of arXiv 2411.02397, section 3.3). L is a multiple of ``tokens``, of two frames at least.
    """
    frames = mean_abs(signal.reshape(-1, tokens, signal.shape[2])).view(signal.shape[0], -1)
    size = frames[:, 1:].mean(dim=1) + frames[:, :-1].mean(dim=1)
    change = mean_abs(signal[:, tokens:].float() - signal[:, :-tokens])
    return change / size.clamp_min(GUARD)


def measure(signal: torch.Tensor, older: torch.Tensor, tokens: int) -> torch.Tensor:
    """Each sample's relative L1 change, and below it its motion where ``tokens`` is not 0: ``[1 or 2, B]`` in fp32."""
    moved = relative_l1(signal, older)
    return torch.stack([moved, motion(signal, tokens)] if tokens else [moved])


def tokens_per_frame(signal: torch.Tensor, grid: tuple[int, int, int]) -> int:
    """Tokens of a latent frame, from the call's grid; 0 where there is but one, or the tokens are not the grid's."""
    frames, height, width = grid
    tokens = height * width
    return tokens if frames > 1 and signal.shape[1] == frames * tokens else 0
