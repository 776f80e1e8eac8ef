"""What one branch of one expert remembers in a run: its residual, and where it stands in the schedule."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from wf_core.api import Decision, ResidualState
from wf_plugin_cache_teacache.plan import StaticPlan, decide_all
from wf_plugin_cache_teacache.rule import Accumulator, forced_reason
from wf_plugin_cache_teacache.signals import off_schedule, relative_l1, signal_at, solver_timestep

if TYPE_CHECKING:
    import torch

    from wf_core.api import FeatureCounters, RunView, Step
    from wf_plugin_cache_teacache.settings import Settings

OFF_SCHEDULE = "a call did not have the timestep and expert scheduled for its step; it was computed"
OUT_OF_DOMAIN = "the polynomial left its domain; the step was computed"
UNKNOWN_STEPS = "the number of steps is not known, so the last ones cannot be told; the step was computed"


class TeaState(ResidualState):
    """Keeps the residual in the blocks' own dtype, and the step that it is from."""

    def __init__(self, settings: Settings, counters: FeatureCounters) -> None:
        super().__init__()
        self._settings = settings
        self._counters = counters
        self._kept: int | None = None

    def commit(self, step: Step, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        if step.ambiguous:  # perhaps another branch's residual: nothing may be predicted from it
            self._residual = self._kept = None
            return
        super().commit(step, hidden_states, output)
        self._kept = step.index

    def _fall_back(self, reason: str, sentence: str, metric: float | None = None) -> Decision:
        self._counters.fall_back("stack", sentence)
        return Decision(True, reason, metric)


class StaticState(TeaState):
    """Follows the run's schedule; a decision is a look-up. A step computed for another reason starts a new one."""

    def __init__(self, settings: Settings, counters: FeatureCounters, plan: StaticPlan) -> None:
        super().__init__(settings, counters)
        self._schedule = plan
        self._forced: set[int] = set()
        self._decided = plan.decisions
        self._decisions = _as_decisions(plan)

    def decide(self, step: Step, hidden_states: torch.Tensor) -> Decision:
        index = step.index
        if step.ambiguous:
            return Decision(True, "ambiguous-identity")
        if not self._on_schedule(step):
            self._replan(index)
            return self._fall_back("schedule-mismatch", OFF_SCHEDULE)
        planned = self._decided[index]
        if not planned.compute and self._kept is not None and planned.anchor != self._kept:
            self._replan(index)  # a computed step was scheduled at which this branch was not called
            return Decision(True, "missed-step")
        if planned.reason == "max-skip":
            self._counters.add("max_skip_cuts")
        return self._decisions[index]

    def forced(self, step: Step) -> None:
        self._replan(step.index)

    def _on_schedule(self, step: Step) -> bool:
        plan, index = self._schedule, step.index
        return (
            0 <= index < len(plan.timesteps)
            and step.expert == plan.experts[index]
            and not off_schedule(step, plan.timesteps[index])
        )

    def _replan(self, index: int) -> None:
        self._forced.add(index)
        plan = self._schedule
        decided = decide_all(plan.distances, self._settings, self._forced)
        self._decided = decided
        self._decisions = _as_decisions(StaticPlan(plan.timesteps, plan.experts, plan.distances, decided))


class LiveState(TeaState):
    """For a driver that gives no schedule: the signal is evaluated at each call's own timestep (one device sync)."""

    def __init__(self, settings: Settings, counters: FeatureCounters, run: RunView, expert: str) -> None:
        super().__init__(settings, counters)
        self._run = run
        self._expert = expert
        self._signal: torch.Tensor | None = None
        self._accumulator = Accumulator(settings.coefficients, settings.threshold, settings.max_skip)

    def decide(self, step: Step, hidden_states: torch.Tensor) -> Decision:
        previous = self._signal
        if step.ambiguous:
            self._signal = None
            return self._dense("ambiguous-identity")
        self._signal = signal_at(self._run, self._expert, (solver_timestep(step),), self._settings.signal)
        total = step.total or self._run.num_inference_steps
        if not total and self._settings.last:
            self._accumulator.reset()
            return self._fall_back("unknown-steps", UNKNOWN_STEPS)
        reason = forced_reason(step.index, total or sys.maxsize, self._settings.first, self._settings.last)
        if reason or previous is None:
            return self._dense(reason or "nothing-cached")
        return self._compare(relative_l1(self._signal, previous)[0])

    def forced(self, step: Step) -> None:
        self._accumulator.reset()

    def held(self) -> Iterable[torch.Tensor]:
        return (*super().held(), *(() if self._signal is None else (self._signal,)))

    def _dense(self, reason: str) -> Decision:
        self._accumulator.reset()
        return Decision(True, reason)

    def _compare(self, distance: float) -> Decision:
        compute, reason, compared = self._accumulator.offer(distance)
        if reason == "not-finite" or compared < -self._settings.threshold:
            self._accumulator.reset()
            return self._fall_back("domain", OUT_OF_DOMAIN, compared)
        if reason == "max-skip":
            self._counters.add("max_skip_cuts")
        return Decision(compute, reason, compared)


def _as_decisions(plan: StaticPlan) -> tuple[Decision, ...]:
    return tuple(Decision(d.compute, d.reason, d.compared) for d in plan.decisions)
