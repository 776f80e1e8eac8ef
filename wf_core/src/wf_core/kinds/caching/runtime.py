"""What stands at the seam: asks one state per run, expert and branch, computes or predicts, counts, and releases.

The order of checks is fixed here and the reason of every decision is recorded: ambiguous identity; then the algorithm's
own rule; and where that would skip, whether gradients are recorded, whether anything is kept yet, and of the same
geometry. What an ambiguous call leaves is not kept, and what was kept is dropped: it could belong to another branch. A
call that raises leaves nothing either: the rule has taken it for computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from wf_core.kinds.caching.decisions import (
    SENTENCES,
    CacheEvent,
    Decision,
    Reason,
)
from wf_core.kinds.techniques import Technique

if TYPE_CHECKING:
    import torch

    from wf_core.kinds.caching.states import CacheState
    from wf_core.kinds.runview import RunView
    from wf_core.model.identity import Step
    from wf_core.model.seams import Handler, Site


class FeatureCache(Technique, ABC):
    """A cache at one seam, ``stack`` unless a subclass names another: at each call it is computed or predicted.

    Counts ``computed`` and ``skipped`` calls, and ``max_skip_cuts`` where a run of skips was cut.
    """

    seam: ClassVar[str] = "stack"

    def __init__(self) -> None:
        self._run: RunView | None = None
        self._states: dict[tuple[str, str], CacheState] = {}
        self._expert = ""
        self.events: list[CacheEvent] = []

    @abstractmethod
    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        """A fresh state for one expert and branch. Called at the first call of that branch in the run."""

    def handlers(self) -> Mapping[str, Handler]:
        return {self.seam: self._around}

    def begin(self, run: RunView) -> None:
        self.forget()
        self.events = []
        self._expert = ""
        self._run = run

    def end(self) -> None:
        self.forget()
        self._run = None

    def close(self) -> None:
        self.end()

    def forget(self) -> None:
        """Drop every state. A subclass that keeps more drops that too."""
        self._states.clear()

    def held_tensors(self) -> Iterable[torch.Tensor]:
        return tuple(tensor for state in self._states.values() for tensor in state.held())

    def now(self) -> tuple[RunView, Step]:
        """The open run and the call in progress."""
        step = self._run.now() if self._run is not None else None
        if self._run is None or step is None:
            raise RuntimeError("a transformer of this session was called outside a run")
        return self._run, step

    def total(self, step: Step) -> int:
        """The run's number of solver steps, 0 where nobody has said it."""
        return self._run.total(step) if self._run is not None else step.total

    def state(self, step: Step) -> CacheState:
        """The state of the call in progress; those of an expert that the run has left behind are dropped."""
        run, _ = self.now()
        if step.expert != self._expert:
            self._leave_experts(run, step)
            self._expert = step.expert
        key = (step.expert, step.branch)
        if key not in self._states:
            self._states[key] = self.new_state(run, *key)
        return self._states[key]

    def settle(self, state: CacheState, step: Step, value: Any) -> Decision:
        """The state's decision, overridden where nothing can or may be predicted; fallbacks and cuts are counted.

        An ambiguous call is computed and the state is not asked: it is dropped when the call is done.
        """
        if step.ambiguous:
            decision = Decision(True, Reason.AMBIGUOUS)
        else:
            decision = state.decide(step, value)
            reason = "" if decision.compute else self._why_not(state, step, value)
            if reason:
                state.forced(step)
                decision = Decision(True, reason, decision.metric)
        self.tell(decision)
        return decision

    def tell(self, decision: Decision) -> None:
        """Counts what a decision says of itself: a fallback, or a run of skips that was cut."""
        sentence = decision.fallback or SENTENCES.get(decision.reason, "")
        if sentence:
            self.counters.fall_back(self.seam, sentence)
        if decision.reason == Reason.MAX_SKIP:
            self.counters.add("max_skip_cuts")

    def record(self, step: Step, decision: Decision, share: float | None = None) -> None:
        """One call is done. ``share`` is the part of the blocks that ran, where that is neither all nor none."""
        ran = float(decision.compute) if share is None else share
        self.events.append(
            CacheEvent(
                step.index, step.expert, step.branch, decision.compute, decision.reason, decision.metric, ran
            )
        )
        self.counters.add("computed" if decision.compute else "skipped")

    def _around(self, inner: Callable[[Any], torch.Tensor], site: Site, value: Any) -> torch.Tensor:
        _, step = self.now()
        state = self.state(step)
        try:
            decision = self.settle(state, step, value)
            if decision.compute:
                output = inner(value)
                if not step.ambiguous:
                    state.commit(step, value, output)
            else:
                output = state.predict(step, value)
        except BaseException:
            self.forget()
            raise
        if step.ambiguous:
            self.forget()
        self.record(step, decision)
        return output

    def _why_not(self, state: CacheState, step: Step, value: Any) -> str:
        """Why a call that the rule would skip is computed; "" where nothing speaks against it."""
        import torch

        run, _ = self.now()
        trained = torch.is_grad_enabled() and bool(run.facts.get("run.grad_enabled"))
        return Reason.GRADIENTS if step.gradients or trained else state.ready(value)

    def _leave_experts(self, run: RunView, step: Step) -> None:
        """An expert that runs no more in this run needs its tensors no more."""
        if step.ambiguous or not 0 <= step.index < len(run.experts):
            return
        to_come = {step.expert, *run.experts[step.index :]}
        for key in [key for key in self._states if key[0] not in to_come]:
            del self._states[key]
