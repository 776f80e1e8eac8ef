"""A run without a model: a time embedding of the real form, steps, counters, and blocks that count their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from teacache_vectors import Signal

from wf_core.api import Facts
from wf_core.testing import CacheDriver
from wf_lib_teacache.cache import TeaCache
from wf_lib_teacache.settings import Settings

LINE = (1.0, 0.0)
"""The polynomial p(d) = d, with which estimates are the distances themselves."""


def settings(coefficients: Sequence[float] = LINE, threshold: float = 0.1, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "signal": "e",
        "first": 1,
        "last": 1,
        "max_skip": None,
        "source": "coefficients",
        **changes,
    }
    return Settings(coefficients=tuple(coefficients), threshold=threshold, **values)


class TimeEmbedding:
    """``e = W2 silu(W1 sinus(t))``, ``e0 = P silu(e)`` in fp32 with random weights, one set per expert."""

    def __init__(self, seed: int = 0, width: int = 48) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.w1 = torch.randn(width, 256, generator=generator) / 16
        self.w2 = torch.randn(width, width, generator=generator) / width**0.5
        self.projection = torch.randn(6 * width, width, generator=generator) / width**0.5

    def __call__(self, timesteps: Sequence[float]) -> Mapping[str, torch.Tensor]:
        t = torch.as_tensor(timesteps, dtype=torch.float64)
        angle = t[:, None] * 10000.0 ** (-torch.arange(128, dtype=torch.float64) / 128)
        sinus = torch.cat([angle.cos(), angle.sin()], dim=1).float()
        e = torch.nn.functional.silu(sinus @ self.w1.T) @ self.w2.T
        return {"e": e, "e0": torch.nn.functional.silu(e) @ self.projection.T}

    def signal(self, name: str) -> Signal:
        return lambda timesteps: self(timesteps)[name]


class Ramp:
    """A signal ``[t, ..., t]``: the distance from t' to t is |t - t'| / |t'|, whatever the weights."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, timesteps: Sequence[float]) -> Mapping[str, torch.Tensor]:
        self.calls += 1
        rows = torch.as_tensor(timesteps, dtype=torch.float32)[:, None].expand(-1, 4)
        return {"e": rows, "e0": rows.repeat(1, 6)}


def ramp_timesteps(distances: Sequence[float], start: float = 1000.0) -> tuple[float, ...]:
    """Timesteps, going up, at which `Ramp` has these distances; the first distance is ignored."""
    found = [start]
    for distance in distances[1:]:
        found.append(found[-1] * (1 + distance))
    return tuple(found)


class Driver(CacheDriver):
    """A driver whose blocks add ``bias`` and count their calls, and whose calls name their timestep."""

    def __init__(self, cache: Any, modulation: Any, facts: Facts | None = None) -> None:
        super().__init__(cache, (self._add,), modulation, facts)
        self.inner_calls = 0
        self.bias: Any = 1.0

    def at(self, index: int, timestep: Any, hidden_states: torch.Tensor | None = None, **more: Any) -> Any:
        """One call at a timestep."""
        return self.call(index, hidden_states, timestep=timestep, **more)

    def _add(self, x: torch.Tensor) -> torch.Tensor:
        self.inner_calls += 1
        return x + self.bias


def driver(modulation: Any = None, **changes: Any) -> Driver:
    """A driver of a TeaCache with the line polynomial on the `Ramp` signal, unless told otherwise."""
    return Driver(TeaCache(settings(**changes)), Ramp() if modulation is None else modulation)
