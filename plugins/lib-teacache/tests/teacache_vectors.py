"""The test vectors of TeaCache, and timesteps at which a real checkpoint's signal has a vector's distances.

``data/vectors.json`` holds figures only: inputs, expected values and tolerances. A vector gives distances; a run
takes timesteps. ``timesteps_for`` searches the timesteps whose signal distances are the vector's, so that the same
vector can drive a whole session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

Signal = Callable[[tuple[float, ...]], torch.Tensor]
"""Timesteps -> the time signal at each, ``[N, D]``."""

SCHEDULES = ("tea.sched.e.1_3b", "tea.sched.e0.14b.negative")
"""Vectors with one legal schedule each: ``preset``, ``thresh``, ``retain_first``, ``retain_last`` and ``d``."""

START = 40.0
_REACH = 400.0
_SECTIONS = 128


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())
    return loaded


def vector(name: str) -> dict[str, Any]:
    found: dict[str, Any] = _data()["vectors"][name]
    return found


def coefficients(preset: str) -> tuple[float, ...]:
    return tuple(_data()["coefficients"][preset])


def synthetic() -> dict[str, dict[str, Any]]:
    """The full-length schedules by preset, each with its distances as ``d``."""
    rows = vector("tea.sched.synthetic")["expected"]
    return {name: {**row, "d": _quadratic(row["N"], row["lo"], row["hi"])} for name, row in rows.items()}


def timesteps_for(distances: Sequence[float], signal: Signal, start: float = START) -> tuple[float, ...]:
    """Timesteps, each exact in fp32 and each below the one before, whose signal changes by ``distances``.

    ``distances[0]`` is ignored. The first timestep is ``start``; the search goes down from each timestep in finer and
    finer sections to the nearest point at which the wanted distance is reached. Raises ``ValueError`` when the
    signal never changes that much.
    """
    found = [start]
    for index, wanted in enumerate(distances[1:], start=1):
        now = found[-1]
        here = signal((now,)).double()
        low, high = 0.0, _REACH
        for _ in range(5):
            grid = torch.linspace(low, high, _SECTIONS, dtype=torch.float64)
            if low == 0.0 and high == _REACH:
                grid = high * torch.linspace(0.0, 1.0, _SECTIONS, dtype=torch.float64) ** 3
            there = signal(tuple((now - grid).tolist())).double()
            reached = (_change(there, here) >= wanted).nonzero().flatten()
            if not len(reached):
                raise ValueError(f"step {index}: the signal never changes by {wanted} after timestep {now}")
            first = int(reached[0])
            low, high = float(grid[max(first - 1, 0)]), float(grid[first])
        found.append(torch.tensor(now - high, dtype=torch.float32).item())
    return tuple(found)


def _change(current: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    return (current - previous).abs().mean(dim=1) / previous.abs().mean(dim=1)


def _quadratic(total: int, low: float, high: float) -> list[float]:
    return [low + (high - low) * (i / (total - 1)) ** 2 for i in range(total)]
