"""The time signals of a run and how much they change: the only place where the rule's numbers meet tensors.

``e`` is the time embedding ``[N, D]``, ``e0`` its projection ``[N, 6 D]``, both in fp32 from the checkpoint's own
weights at scalar timesteps (never averaged over tokens, so that every rank and every image-to-video call agrees).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from wf_core.api import RunView

GUARD = 1e-6
"""The least denominator of a relative distance, against an all-zero signal."""


def signal_at(
    run: RunView, expert: str, timesteps: tuple[float, ...] | torch.Tensor, name: str
) -> torch.Tensor:
    """The signal at N scalar timesteps as float64 on the host, ``[N, D]`` or ``[N, 6 D]``: one wait for the device."""
    with torch.no_grad():
        signal = run.modulation(expert, timesteps)[name]
        return signal.detach().to("cpu", torch.float64).flatten(1)


def row_distances(current: torch.Tensor, previous: torch.Tensor) -> list[float]:
    """``mean |current - previous| / mean |previous|`` of each row, ``[N, D]`` -> N numbers without a unit."""
    change = (current - previous).abs().mean(dim=1)
    result: list[float] = (change / previous.abs().mean(dim=1).clamp_min(GUARD)).tolist()
    return result


def run_distances(run: RunView, name: str) -> tuple[float | None, ...]:
    """The distance of every solver step to the one before it by the same expert; None at an expert's first."""
    distances: list[float | None] = [None] * len(run.timesteps)
    for expert in dict.fromkeys(run.experts):
        steps = [index for index, owner in enumerate(run.experts) if owner == expert]
        signal = signal_at(run, expert, tuple(run.timesteps[index] for index in steps), name)
        for index, distance in zip(steps[1:], row_distances(signal[1:], signal[:-1]), strict=True):
            distances[index] = distance
    return tuple(distances)
