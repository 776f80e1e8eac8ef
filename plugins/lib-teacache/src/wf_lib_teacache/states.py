"""Decisions step by step, for a driver that gives no schedule: only a bare transformer is driven without one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wf_core.api import (
    Decision,
    Reason,
    ResidualState,
    Window,
    solver_timestep,
)
from wf_lib_teacache.rule import Accumulator
from wf_lib_teacache.signals import row_distances, signal_at

if TYPE_CHECKING:
    import torch

    from wf_core.api import FeatureCounters, RunView, Step
    from wf_lib_teacache.settings import Settings

OUT_OF_DOMAIN = "the polynomial left its domain; the step was computed"


class LiveState(ResidualState):
    """The signal is evaluated at each call's own timestep: one device sync per call."""

    def __init__(
        self, settings: Settings, run: RunView, expert: str, order: int, counters: FeatureCounters
    ) -> None:
        super().__init__(order)
        self._settings = settings
        self._run = run
        self._expert = expert
        self._counters = counters
        self._window = Window(settings.first, settings.last)
        self._signal: torch.Tensor | None = None
        self._accumulator = Accumulator(settings.coefficients, settings.threshold, settings.max_skip)

    def decide(self, step: Step, value: Any) -> Decision:
        previous = self._signal
        self._counters.add("host_syncs")
        self._signal = signal_at(self._run, self._expert, (solver_timestep(step),), self._settings.signal)
        reason = self._window.reason(step.index, self._run.total(step))
        if reason or previous is None:
            return self._dense(reason or Reason.NOTHING_CACHED)
        return self._compare(row_distances(self._signal, previous)[0])

    def forced(self, step: Step) -> None:
        self._accumulator.reset()

    def held(self) -> Iterable[torch.Tensor]:
        return (*super().held(), *(() if self._signal is None else (self._signal,)))

    def _dense(self, reason: str) -> Decision:
        self._accumulator.reset()
        return Decision(True, reason)

    def _compare(self, distance: float) -> Decision:
        compute, reason, compared = self._accumulator.offer(distance)
        if reason == Reason.NOT_FINITE or compared < -self._settings.threshold:
            self._accumulator.reset()
            return Decision(True, "domain", compared, fallback=OUT_OF_DOMAIN)
        return Decision(compute, reason, compared)
