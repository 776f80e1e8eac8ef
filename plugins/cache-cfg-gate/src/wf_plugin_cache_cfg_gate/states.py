"""What the branches keep: the conditional output within a step, and the difference of the last full step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wf_core.api import (
    CacheState,
    Decision,
    Follower,
    Reason,
    StaticSchedule,
    geometry,
)
from wf_plugin_cache_cfg_gate.rule import difference, unconditional

if TYPE_CHECKING:
    import torch

    from wf_core.api import FeatureCounters, Step

NO_COND = (
    "the unconditional branch was called without the conditional one before it in the step; it was computed"
)


class StepOutput:
    """The conditional output ``[B, C, T', H', W']`` of the step in progress: kept until the step needs it no more."""

    def __init__(self) -> None:
        self._key: tuple[int, str] | None = None
        self._output: torch.Tensor | None = None

    def keep(self, step: Step, output: torch.Tensor) -> None:
        """Keeps a copy: a captured graph gives the next call's output in the same memory."""
        self._key, self._output = (step.index, step.expert), output.detach().clone()

    def of(self, step: Step) -> torch.Tensor | None:
        """The output of this call's step and expert; what is of another step is dropped."""
        if self._key != (step.index, step.expert):
            self.clear()
        return self._output

    def clear(self) -> None:
        """Keep nothing."""
        self._key = self._output = None

    def held(self) -> tuple[torch.Tensor, ...]:
        """The tensor kept now, if any."""
        return () if self._output is None else (self._output,)


class ComputedState(CacheState):
    """A branch that is always computed, with the reason that the report gives."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def decide(self, step: Step, value: Any) -> Decision:
        return Decision(True, self._reason)

    def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
        """Nothing is ever predicted from it."""

    def predict(self, step: Step, value: Any) -> torch.Tensor:
        raise AssertionError("this branch is always computed")

    def ready(self, value: Any) -> str:
        return Reason.NOTHING_CACHED

    def held(self) -> Iterable[torch.Tensor]:
        return ()


class ConditionalState(ComputedState):
    """The branch of the condition: its output is handed on to the rest of the step."""

    def __init__(self, cond: StepOutput) -> None:
        super().__init__("conditional")
        self._cond = cond

    def decide(self, step: Step, value: Any) -> Decision:
        self._cond.clear()  # what an earlier step left is not held while this one is computed
        return super().decide(step, value)

    def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
        self._cond.keep(step, output)


class GatedState(CacheState):
    """The unconditional branch of one expert: keeps ``c - u`` ``[B, C, T', H', W']`` in the outputs' dtype."""

    def __init__(self, schedule: StaticSchedule, cond: StepOutput, counters: FeatureCounters) -> None:
        self._follower = Follower(schedule)
        self._cond = cond
        self._counters = counters
        self._delta: torch.Tensor | None = None
        self._kept_at: int | None = None

    def decide(self, step: Step, value: Any) -> Decision:
        has_cond = self._cond.of(step) is not None
        decision = self._follower.decide(step, self._kept_at)
        if not decision.compute and not has_cond:
            return Decision(True, "no-conditional", fallback=NO_COND)
        return decision

    def forced(self, step: Step) -> None:
        self._follower.forced(step)

    def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
        self._counters.add("full_steps")
        cond = self._cond.of(step)
        self._cond.clear()
        if cond is not None and cond.shape == output.shape:
            self._delta, self._kept_at = difference(cond, output.detach()), step.index

    def predict(self, step: Step, value: Any) -> torch.Tensor:
        cond = self._cond.of(step)
        self._cond.clear()
        assert cond is not None and self._delta is not None, "there is nothing to reuse"
        self._counters.add("reused_deltas")
        return unconditional(cond, self._delta)

    def ready(self, value: Any) -> str:
        if self._delta is None:
            return Reason.NOTHING_CACHED
        (cond,) = self._cond.held()
        return "" if geometry(cond) == geometry(self._delta) else Reason.GEOMETRY_CHANGED

    def held(self) -> Iterable[torch.Tensor]:
        return () if self._delta is None else (self._delta,)
