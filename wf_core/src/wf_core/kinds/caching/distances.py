"""How far a tensor is from an older one. Numbers come to the host once per call, and the call says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GUARD = 1e-6
"""The least denominator of a relative distance, against an all-zero reference."""


def relative_l1(current: torch.Tensor, older: torch.Tensor) -> torch.Tensor:
    """``mean |current - older| / mean |older|`` of each sample: ``[B, ...]`` twice -> ``[B]`` in fp32.

    Differences are taken in fp32 whatever the dtype. Nothing is read back from the device.
    """
    before = older.float().flatten(1)
    change = (current.float().flatten(1) - before).abs().mean(dim=1)
    return change / before.abs().mean(dim=1).clamp_min(GUARD)


def worst(distances: torch.Tensor) -> float:
    """The largest of several distances, NaN if one is NaN: the one wait for the device that a dynamic rule costs.

    A batch is decided by its worst sample, so that no request is skipped because its neighbours stand still.
    """
    return float(distances.max())
