"""``wf calibrate teacache``: measure how the stack's residual changes with the time signal, and fit the polynomial.

Every step is computed. For each pair of consecutive solver steps of one expert and branch, and each sample of the
batch, one point is kept: the relative L1 distance of the signal, and the relative L1 distance of the residual
``output - hidden_states`` (both with the older tensor in the denominator; arXiv 2411.19108, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from wf_core.api import BadInput, Calibrator, Window, checkpoint_of, model_id, solver_timestep
from wf_lib_teacache.presets import FEATURE, SCHEMA, TIME_SIGNALS
from wf_lib_teacache.settings import RETAINED, signals_for
from wf_lib_teacache.signals import GUARD, row_distances, signal_at
from wf_plugin_cache_teacache.fit import DEGREE, Fit, least_squares, recommended_threshold

if TYPE_CHECKING:
    from wf_core.api import Facts, RunView, Step

THRESHOLD_RULE = (
    "the least one that skips at least half of the steps that the rule decides about, on this schedule"
)


@dataclass(frozen=True, slots=True)
class Point:
    """One sample's change from one solver step to the next. ``distances`` is the signal's, by signal name."""

    step: int
    total: int
    expert: str
    branch: str
    distances: Mapping[str, float]
    change: float


@dataclass(slots=True)
class _Last:
    """What the last call of one expert and branch left."""

    step: int
    signals: Mapping[str, torch.Tensor]
    residual: torch.Tensor


class TeaCacheCalibrator(Calibrator):
    """Collects points over any number of runs; ``result`` fits them all."""

    def __init__(self, options: Mapping[str, Any], facts: Facts) -> None:
        super().__init__()
        if signals_for(facts) != TIME_SIGNALS:
            raise BadInput(
                f"teacache: calibration measures the time signals {' and '.join(TIME_SIGNALS)}, and this model family "
                f"is judged by {' or '.join(signals_for(facts))}: give coefficients of your own"
            )
        self.points: list[Point] = []
        self.runs = 0
        self._model = model_id(facts)
        self._checkpoint = checkpoint_of(facts)
        self._last: dict[tuple[str, str], _Last] = {}
        self._schedules: list[dict[int, Mapping[str, float]]] = []

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._last.clear()
        self._schedules.append({})
        self.runs += 1

    def end(self) -> None:
        super().end()
        self._last.clear()

    def held_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(t for last in self._last.values() for t in (last.residual, *last.signals.values()))

    def observe(self, step: Step, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        run = self._run
        if run is None or step.ambiguous:
            self._last.clear()
            return
        time = (solver_timestep(step),)
        signals = {name: signal_at(run, step.expert, time, name) for name in TIME_SIGNALS}
        now = _Last(step.index, signals, (output - hidden_states).detach())
        last = self._last.get((step.expert, step.branch))
        if last is not None and step.index == last.step + 1 and last.residual.shape == now.residual.shape:
            self._add(step, last, now, run.total(step))
        self._last[step.expert, step.branch] = now

    def result(self) -> Mapping[str, Any]:
        """The preset file: one record per signal that could be fitted, and the signal with the higher R^2."""
        fits = {name: fit for name in TIME_SIGNALS if (fit := least_squares(self._pairs(name))) is not None}
        if not fits:
            raise BadInput(
                f"teacache: {len(self.points)} points with too few different distances for a polynomial of degree "
                f"{DEGREE}; calibrate with at least {DEGREE + 1 + sum(RETAINED['e'])} steps"
            )
        return {
            "schema": SCHEMA,
            "feature": FEATURE,
            "model": self._model,
            "checkpoint": self._checkpoint,
            "signal": max(fits, key=lambda name: fits[name].r2),
            "presets": [self._record(name, fit) for name, fit in fits.items()],
        }

    def _add(self, step: Step, last: _Last, now: _Last, total: int) -> None:
        distances = {name: row_distances(now.signals[name], last.signals[name])[0] for name in TIME_SIGNALS}
        self._schedules[-1].setdefault(step.index, distances)
        for change in _per_sample(now.residual, last.residual):
            self.points.append(Point(step.index, total, step.expert, step.branch, distances, change))

    def _pairs(self, name: str) -> list[tuple[float, float]]:
        """The points of the steps at which the rule would ask the polynomial."""
        window = Window(*RETAINED[name])
        return [
            (point.distances[name], point.change)
            for point in self.points
            if not window.reason(point.step, point.total or point.step + window.last + 1)
        ]

    def _record(self, name: str, fit: Fit) -> dict[str, Any]:
        first, last = RETAINED[name]
        total = max((point.total or point.step + 1) for point in self.points)
        longest = max(self._schedules, key=len)
        distances = [longest[i][name] if i in longest else None for i in range(total)]
        return {
            "id": f"{self._model or 'calibrated'}.{name}",
            "models": [self._model] if self._model else [],
            "signal": name,
            "coefficients": list(fit.coefficients),
            "first": first,
            "last": last,
            "threshold": recommended_threshold(distances, fit.coefficients, first, last),
            "threshold_from": THRESHOLD_RULE,
            "num_inference_steps": total,
            "confidence": "calibrated",
            "sources": ["wf calibrate teacache"],
            "checkpoint": self._checkpoint,
            "fit": {
                "target": "relative L1 change of the stack residual between consecutive steps",
                "degree": DEGREE,
                "r2": fit.r2,
                "points": fit.points,
                "domain": list(fit.domain),
                "negative_share": fit.negative_share,
                "runs": self.runs,
                "branches": sorted({point.branch for point in self.points}),
                "experts": sorted({point.expert for point in self.points}),
            },
        }


def _per_sample(current: torch.Tensor, previous: torch.Tensor) -> list[float]:
    """Relative L1 change of each sample ``[B, L, D]`` -> B numbers; differences in fp32, means in float64."""
    older = previous.float().flatten(1)
    change = (current.float().flatten(1) - older).abs().mean(dim=1, dtype=torch.float64)
    size = older.abs().mean(dim=1, dtype=torch.float64).clamp_min(GUARD)
    result: list[float] = (change / size).tolist()
    return result
