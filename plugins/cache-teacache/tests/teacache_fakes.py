"""A run without a model: a time embedding of the real form, steps, counters, and blocks that count their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from teacache_vectors import Signal

from wf_core.api import Facts, RunView, Site, Step
from wf_plugin_cache_teacache.cache import TeaCache
from wf_plugin_cache_teacache.settings import Settings

SITE = Site("stack")
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
        t = torch.tensor(timesteps, dtype=torch.float64)
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
        rows = torch.tensor(timesteps, dtype=torch.float32)[:, None].expand(-1, 4)
        return {"e": rows, "e0": rows.repeat(1, 6)}


def ramp_timesteps(distances: Sequence[float], start: float = 1000.0) -> tuple[float, ...]:
    """Timesteps, going up, at which `Ramp` has these distances; the first distance is ignored."""
    found = [start]
    for distance in distances[1:]:
        found.append(found[-1] * (1 + distance))
    return tuple(found)


class FakeCounters:
    """What a technique counts with, kept in plain dictionaries."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount

    def fall_back(self, seam: str, reason: str) -> None:
        self.fallbacks[reason] += 1


class Driver:
    """Plays the host: opens a run on one technique and calls its ``stack`` handler step by step."""

    def __init__(self, cache: Any, modulation: Any, facts: Facts | None = None) -> None:
        self.cache = cache
        self.modulation = modulation
        self.facts = facts if facts is not None else Facts()
        self.inner_calls = 0
        self.bias = 1.0
        self._step: Step | None = None

    def view(
        self, timesteps: Sequence[float], experts: Sequence[str] = (), total: int | None = None
    ) -> RunView:
        return RunView(
            num_inference_steps=len(timesteps) if total is None else total,
            timesteps=tuple(timesteps),
            experts=tuple(experts) or ("transformer",) * len(timesteps),
            branches=2,
            facts=self.facts,
            modulation=self._modulate,
            now=lambda: self._step,
        )

    def begin(self, run: RunView) -> FakeCounters:
        counters = FakeCounters()
        self.cache.counters = counters
        assert list(self.cache.check(run)) == []
        self.cache.begin(run)
        return counters

    def call(
        self,
        index: int,
        timestep: float | torch.Tensor,
        hidden_states: torch.Tensor | None = None,
        *,
        branch: str = "cond",
        expert: str = "transformer",
        total: int = 0,
        source: str = "context",
    ) -> torch.Tensor:
        x = torch.ones(1, 2, 4) if hidden_states is None else hidden_states
        t = timestep if isinstance(timestep, torch.Tensor) else torch.full((x.shape[0],), float(timestep))
        self._step = Step(index, total, branch, expert, source, t, (1, 1, 2))
        try:
            output: torch.Tensor = self.cache.handlers()["stack"](self._blocks, SITE, x)
        finally:
            self._step = None
        return output

    def play(self, run: RunView, branches: Sequence[str] = ("cond",)) -> dict[str, list[int]]:
        """A whole run of a known schedule; the computed steps of each branch."""
        for index, timestep in enumerate(run.timesteps):
            for branch in branches:
                self.call(index, timestep, branch=branch, expert=run.experts[index], total=len(run.timesteps))
        return {branch: self.computed(branch) for branch in branches}

    def computed(self, branch: str = "cond", expert: str | None = None) -> list[int]:
        return [
            event.step
            for event in self.cache.events
            if event.computed and event.branch == branch and expert in (None, event.expert)
        ]

    def reasons(self, branch: str = "cond") -> dict[int, str]:
        return {event.step: event.reason for event in self.cache.events if event.branch == branch}

    def _blocks(self, hidden_states: torch.Tensor) -> torch.Tensor:
        self.inner_calls += 1
        return hidden_states + self.bias

    def _modulate(self, expert: str, timesteps: Any) -> Mapping[str, torch.Tensor]:
        chosen = self.modulation[expert] if isinstance(self.modulation, dict) else self.modulation
        found: Mapping[str, torch.Tensor] = chosen(tuple(float(t) for t in timesteps))
        return found


def driver(modulation: Any = None, **changes: Any) -> Driver:
    """A driver of a TeaCache with the line polynomial on the `Ramp` signal, unless told otherwise."""
    return Driver(TeaCache(settings(**changes)), Ramp() if modulation is None else modulation)
