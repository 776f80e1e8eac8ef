"""Decisions call by call: for a driver that gives no schedule, and for a signal that depends on the latent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from wf_core.api import (
    Decision,
    Reason,
    ResidualState,
    Window,
    geometry,
    relative_l1,
    worst,
)
from wf_lib_teacache.rule import Accumulator
from wf_lib_teacache.signals import row_distances, signal_at

if TYPE_CHECKING:
    import torch

    from wf_core.api import FeatureCounters, RunView, Step
    from wf_lib_teacache.settings import Settings

OUT_OF_DOMAIN = "the polynomial left its domain; the step was computed"


class ComparingState(ResidualState):
    """What both share: a signal that is kept from every call, computed or not, and the rule over its distances.

    A distance costs one wait for the device, counted as ``host_syncs``.
    """

    def __init__(self, settings: Settings, run: RunView, order: int, counters: FeatureCounters) -> None:
        super().__init__(order)
        self._settings = settings
        self._run = run
        self._counters = counters
        self._window = Window(settings.first, settings.last)
        self._signal: torch.Tensor | None = None
        self._accumulator = Accumulator(settings.coefficients, settings.threshold, settings.max_skip)

    def forced(self, step: Step) -> None:
        self._accumulator.reset()

    def held(self) -> Iterable[torch.Tensor]:
        return (*super().held(), *(() if self._signal is None else (self._signal,)))

    def _forced_reason(self, step: Step) -> str:
        return self._window.reason(step.index, self._run.total(step))

    def _dense(self, reason: str) -> Decision:
        self._accumulator.reset()
        return Decision(True, reason)

    def _compare(self, distance: float) -> Decision:
        compute, reason, compared = self._accumulator.offer(distance)
        if reason == Reason.NOT_FINITE or compared < -self._settings.threshold:
            self._accumulator.reset()
            return Decision(True, "domain", compared, fallback=OUT_OF_DOMAIN)
        return Decision(compute, reason, compared)


class LiveState(ComparingState):
    """A time signal without a schedule: it is evaluated at each call's own timestep, the largest of its tokens, since
    those of given frames are 0.
    """

    def __init__(
        self, settings: Settings, run: RunView, expert: str, order: int, counters: FeatureCounters
    ) -> None:
        super().__init__(settings, run, order, counters)
        self._expert = expert

    def decide(self, step: Step, value: Any) -> Decision:
        previous = self._signal
        self._counters.add("host_syncs")
        self._signal = signal_at(
            self._run, self._expert, step.timestep.max().reshape(1), self._settings.signal
        )
        reason = self._forced_reason(step)
        if reason or previous is None:
            return self._dense(reason or Reason.NOTHING_CACHED)
        return self._compare(row_distances(self._signal, previous)[0])


class Entered(NamedTuple):
    """A call as the first block sees it: what enters the stack, and its own modulated input, both ``[B, L, D]``."""

    hidden_states: torch.Tensor
    signal: torch.Tensor


class BlockState(ComparingState):
    """The first block's modulated input. The distance of a batch is that of the sample that has moved most."""

    def decide(self, step: Step, value: Entered) -> Decision:
        previous, self._signal = self._signal, value.signal
        reason = self._forced_reason(step) or self.ready(value)
        if reason or previous is None:
            return self._dense(reason or Reason.NOTHING_CACHED)
        if geometry(previous) != geometry(value.signal):
            return self._dense(Reason.GEOMETRY_CHANGED)
        self._counters.add("host_syncs")
        return self._compare(worst(relative_l1(value.signal, previous)))

    def commit(self, step: Step, value: Entered, output: torch.Tensor) -> None:
        super().commit(step, value.hidden_states, output)

    def predict(self, step: Step, value: Entered) -> torch.Tensor:
        return super().predict(step, value.hidden_states)

    def ready(self, value: Entered) -> str:
        return super().ready(value.hidden_states)
