"""Static caches: every decision of a run is known on the host before its first model call, and costs nothing per step.

A schedule depends on the run's steps and on numbers given beforehand, never on values in tensors, so that it is the
same for every prompt, batch and rank.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from wf_core.kinds.caching.decisions import (
    Decision,
    Reason,
    Window,
)
from wf_core.kinds.caching.runtime import FeatureCache
from wf_core.kinds.caching.states import CacheState, ResidualState

if TYPE_CHECKING:
    import torch

    from wf_core.kinds.runview import RunView
    from wf_core.model.identity import Step

Rule = Callable[[Collection[int]], Sequence[Decision]]
"""``rule(forced)``: the decision of every step of a run in which the steps ``forced`` are computed all the same."""

OFF_SCHEDULE = "a call did not have the timestep and expert scheduled for its step; it was computed"


@frozen
class StaticSchedule:
    """One decision per solver step, and the rule that makes them anew where a run leaves the schedule.

    ``timesteps`` and ``experts`` are the run's, empty where the driver gave none.
    """

    rule: Rule = field(repr=False, eq=False)
    decisions: tuple[Decision, ...]
    timesteps: tuple[float, ...] = ()
    experts: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: RunView, rule: Rule) -> StaticSchedule:
        """The schedule of a run whose number of steps is known."""
        return cls(rule, tuple(rule(frozenset())), run.timesteps, run.experts)

    @property
    def skipped(self) -> int:
        """How many steps are skipped in each branch that follows it."""
        return sum(not decision.compute for decision in self.decisions)

    def anchors(self) -> tuple[int, ...]:
        """For each step the computed step whose values it uses: itself when it is computed."""
        found, newest = [], 0
        for index, decision in enumerate(self.decisions):
            newest = index if decision.compute else newest
            found.append(newest)
        return tuple(found)


def scheduled(
    run: RunView, window: Window, rule: Callable[[int], str], forced: Collection[int] = ()
) -> tuple[Decision, ...]:
    """Decisions where each step stands for itself: computed in the window, at an expert's first step, where ``forced``,
    and where ``rule(index)`` gives a reason; skipped elsewhere.
    """
    total = run.num_inference_steps
    decisions = []
    for index in range(total):
        reason = window.reason(index, total) or expert_start(run, index)
        reason = reason or ("forced" if index in forced else "") or rule(index)
        decisions.append(Decision(bool(reason), reason or "between"))
    return tuple(decisions)


def expert_start(run: RunView, index: int) -> str:
    """Why the first step of the run, or of an expert, is computed: nothing of its own is kept yet. Else ""."""
    if index == 0:
        return Reason.NOTHING_CACHED
    changed = len(run.experts) > index and run.experts[index] != run.experts[index - 1]
    return "expert-start" if changed else ""


class Follower:
    """Where one branch stands in its schedule. A step computed for another reason starts a new schedule from there."""

    def __init__(self, schedule: StaticSchedule) -> None:
        self._schedule = schedule
        self._anchors = schedule.anchors()
        self._forced: set[int] = set()

    def decide(self, step: Step, kept_at: int | None) -> Decision:
        """The decision of a call; ``kept_at`` is the step that the branch's newest values are from."""
        if not self._on_schedule(step):
            self.forced(step)
            return Decision(True, "schedule-mismatch", fallback=OFF_SCHEDULE)
        planned = self._schedule.decisions[step.index]
        if not planned.compute and kept_at is not None and self._anchors[step.index] != kept_at:
            self.forced(step)  # a computed step was scheduled at which this branch was not called
            return Decision(True, "missed-step")
        return planned

    def forced(self, step: Step) -> None:
        """The step is computed whatever was planned."""
        self._forced.add(step.index)
        old = self._schedule
        decisions = tuple(old.rule(frozenset(self._forced)))
        self._schedule = StaticSchedule(old.rule, decisions, old.timesteps, old.experts)
        self._anchors = self._schedule.anchors()

    def _on_schedule(self, step: Step) -> bool:
        plan, index = self._schedule, step.index
        if not 0 <= index < len(plan.decisions):
            return False
        if plan.experts and step.expert != plan.experts[index]:
            return False
        return not plan.timesteps or not off_schedule(step, plan.timesteps[index])


def solver_timestep(step: Step) -> float:
    """The solver's scalar timestep of a call: per-token timesteps hold zeros for given frames, so the maximum."""
    return float(step.timestep.max())


def off_schedule(step: Step, scheduled: float) -> bool:
    """Whether a call was given another timestep than its step's. Looked at only where that needs no device sync."""
    import torch

    timestep = step.timestep
    if timestep.device.type != "cpu":
        return False
    eps = torch.finfo(timestep.dtype).eps if timestep.is_floating_point() else 0.0
    given: Any = timestep.max().tolist()  # from host memory, and not by the operator that waits for a device
    near = abs(given - scheduled) <= max(1e-3, eps) * max(1.0, abs(scheduled))
    return not near  # written so that a timestep that is not a number is off the schedule


class ScheduledState(ResidualState):
    """Follows a schedule and predicts the stack's residual."""

    def __init__(self, schedule: StaticSchedule, order: int = 0) -> None:
        super().__init__(order)
        self._follower = Follower(schedule)

    def decide(self, step: Step, value: Any) -> Decision:
        return self._follower.decide(step, self.kept_at)

    def forced(self, step: Step) -> None:
        self._follower.forced(step)


class UnscheduledState(ResidualState):
    """Where the number of steps is not known there is no schedule: everything is computed, and the report says so."""

    def decide(self, step: Step, value: Any) -> Decision:
        return Decision(True, Reason.UNKNOWN_STEPS)

    def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
        """Nothing is ever predicted from it."""


class ScheduledCache(FeatureCache):
    """A cache at the ``stack`` seam that follows a schedule. A plugin is its `schedule`, and little else.

    ``order`` is that of the residual's continuation; see `ResidualState`.
    """

    def __init__(self, order: int = 0) -> None:
        super().__init__()
        self.order = order
        self._schedules: dict[str, StaticSchedule | None] = {}

    @abstractmethod
    def schedule(self, run: RunView, branch: str) -> StaticSchedule | None:
        """The schedule of one branch (``cond``, ``uncond``); None where the run's number of steps is not known."""

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._schedules = {}
        for branch in ("cond", "uncond")[: run.branches]:
            self.planned(run, branch)
        known = tuple(self.schedules.values())
        if known and not any(schedule.skipped for schedule in known):
            self.counters.fall_back(self.seam, _why_all(known[0]))

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        schedule = self.planned(run, branch)
        return ScheduledState(schedule, self.order) if schedule is not None else UnscheduledState()

    def end(self) -> None:
        super().end()
        self._schedules = {}

    @property
    def schedules(self) -> Mapping[str, StaticSchedule]:
        """The schedules of the open run by branch; empty where its number of steps is not known."""
        return {branch: schedule for branch, schedule in self._schedules.items() if schedule is not None}

    def planned(self, run: RunView, branch: str) -> StaticSchedule | None:
        """The `schedule` of one branch of the open run, which is made once."""
        if branch not in self._schedules:
            self._schedules[branch] = self.schedule(run, branch)
        return self._schedules[branch]


def _why_all(schedule: StaticSchedule) -> str:
    """Why a schedule skips nothing, from its own reasons: ``all 4 steps are computed: 1 nothing-cached, ...``."""
    reasons = Counter(decision.reason for decision in schedule.decisions)
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"all {len(schedule.decisions)} steps are computed: {listed}"
