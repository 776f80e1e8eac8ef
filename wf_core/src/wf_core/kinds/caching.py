"""The cache runtime: what every feature cache shares, so that a plugin is its algorithm and little else.

One ``CacheState`` per (run, expert, branch). The runtime asks it to decide, keeps what a computed step leaves, and
predicts on a skipped step. The order of checks is fixed here and the reason of every decision is recorded:
ambiguous identity, nothing kept yet, another geometry; only then the algorithm's own rule. What an ambiguous call
leaves is not kept, and what was kept is dropped: it could belong to another branch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from wf_core.kinds.techniques import Technique

if TYPE_CHECKING:
    import torch

    from wf_core.kinds.runview import RunView
    from wf_core.model.identity import Step
    from wf_core.model.seams import Handler, Site


@frozen
class Decision:
    """Whether the blocks run at this step. ``reason`` is a short word for the report; ``metric`` what was compared."""

    compute: bool
    reason: str
    metric: float | None = None


@frozen
class CacheEvent:
    """One decision as the report shows it."""

    step: int
    expert: str
    branch: str
    computed: bool
    reason: str
    metric: float | None


class CacheState(ABC):
    """The state of one expert and branch in one run."""

    @abstractmethod
    def decide(self, step: Step, hidden_states: torch.Tensor) -> Decision:
        """Called once per call of this branch, before any block runs, also when ``forced`` will override it."""

    def forced(self, step: Step) -> None:
        """The runtime computes this step for a reason of its own: start the accumulation anew."""

    @abstractmethod
    def commit(self, step: Step, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        """After a computed step: keep what prediction needs, detached and not aliasing the model's buffers."""

    @abstractmethod
    def predict(self, step: Step, hidden_states: torch.Tensor) -> torch.Tensor:
        """The stack's output on a skipped step. Must not write to what is kept."""

    @abstractmethod
    def ready(self, hidden_states: torch.Tensor) -> str:
        """Empty when a prediction is possible for this input, else the reason why not."""

    @abstractmethod
    def held(self) -> Iterable[torch.Tensor]:
        """The tensors kept now."""


class ResidualState(CacheState):
    """Keeps the stack residual ``output - hidden_states`` ``[B, L, D]`` and adds it back on a skipped step."""

    def __init__(self) -> None:
        self._residual: torch.Tensor | None = None

    def commit(self, step: Step, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        self._residual = (output - hidden_states).detach()

    def predict(self, step: Step, hidden_states: torch.Tensor) -> torch.Tensor:
        assert self._residual is not None, "predict() before commit()"
        return hidden_states + self._residual

    def ready(self, hidden_states: torch.Tensor) -> str:
        if self._residual is None:
            return "nothing-cached"
        same = self._residual.shape == hidden_states.shape and self._residual.dtype == hidden_states.dtype
        return "" if same else "geometry-changed"

    def held(self) -> Iterable[torch.Tensor]:
        return () if self._residual is None else (self._residual,)


class FeatureCache(Technique, ABC):
    """A cache at the ``stack`` seam: at each step the blocks run, or their output is predicted."""

    def __init__(self) -> None:
        self._run: RunView | None = None
        self._states: dict[tuple[str, str], CacheState] = {}
        self.events: list[CacheEvent] = []

    @abstractmethod
    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        """A fresh state for one expert and branch. Called at the first call of that branch in the run."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"stack": self._around}

    def begin(self, run: RunView) -> None:
        self._states.clear()
        self.events = []
        self._run = run

    def end(self) -> None:
        self._states.clear()
        self._run = None

    def close(self) -> None:
        self.end()

    def held_tensors(self) -> Iterable[torch.Tensor]:
        return tuple(tensor for state in self._states.values() for tensor in state.held())

    def _around(
        self, inner: Callable[[torch.Tensor], torch.Tensor], site: Site, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        run = self._run
        step = run.now() if run is not None else None
        if run is None or step is None:
            raise RuntimeError("a transformer of this session was called outside a run")
        state = self._state(run, step)
        decision = self._decide(state, step, hidden_states)
        self.events.append(
            CacheEvent(
                step.index, step.expert, step.branch, decision.compute, decision.reason, decision.metric
            )
        )
        if decision.compute:
            output = inner(hidden_states)
            if step.ambiguous:
                self._states.clear()
            else:
                state.commit(step, hidden_states, output)
            self.counters.add("computed")
            return output
        output = state.predict(step, hidden_states)
        self.counters.add("skipped")
        return output

    def _state(self, run: RunView, step: Step) -> CacheState:
        key = (step.expert, step.branch)
        if key not in self._states:
            self._states[key] = self.new_state(run, *key)
        return self._states[key]

    def _decide(self, state: CacheState, step: Step, hidden_states: torch.Tensor) -> Decision:
        decision = state.decide(step, hidden_states)
        forced = "ambiguous-identity" if step.ambiguous else ""
        if not decision.compute:
            forced = forced or state.ready(hidden_states)
        if not forced:
            return decision
        state.forced(step)
        if step.ambiguous:
            self.counters.fall_back(
                "stack", "the step and branch of a call could not be told; it was computed"
            )
        return Decision(True, forced, decision.metric)
