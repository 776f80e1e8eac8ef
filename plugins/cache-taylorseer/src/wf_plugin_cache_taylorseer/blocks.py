"""``blocktaylorseer``: the branches of every block, computed in a pattern of steps and extrapolated in between.

At a skipped step the blocks are walked through all the same, and each branch's output is predicted: what is left is the
modulation of the current step, its gates, and the residual additions. A branch's norm is not needed then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wf_core.api import Decision, Reason, ScheduledCache, StaticSchedule, Window, scheduled
from wf_plugin_cache_taylorseer.memory import why_too_large
from wf_plugin_cache_taylorseer.rule import in_pattern
from wf_plugin_cache_taylorseer.sequences import Sequences
from wf_plugin_cache_taylorseer.stack import skips_of

if TYPE_CHECKING:
    import torch

    from wf_core.api import CacheState, Handler, RunView, Site, Step


class _Unfit(BaseException):
    """A branch has other sizes than when it was sampled, which the hidden states at ``stack`` do not show: the text of
    a two-stream model. Leaves the call, which is then computed. No ``except Exception`` on the way is meant.
    """


@dataclass(slots=True)
class _Call:
    """The transformer call in progress: how it was decided, and how many branches were predicted so far."""

    step: Step
    kept: Sequences
    compute: bool
    predicted: int = 0


class BlockTaylorSeer(ScheduledCache):
    """Decides once per transformer call, at ``stack``; computes or predicts at each ``branch``.

    VACE's control blocks are blocks like the others. Counts ``predicted_outputs`` beside the calls.
    """

    def __init__(self, pattern: tuple[bool, ...], order: int = 1, first: int = 0, last: int = 1) -> None:
        super().__init__(order)
        self._pattern = pattern
        self._window = Window(first, last)
        self._call: _Call | None = None
        self._shown: dict[str, object] = {}

    def schedule(self, run: RunView, branch: str) -> StaticSchedule | None:
        if not run.num_inference_steps:
            return None
        window, pattern = self._window, self._pattern
        return StaticSchedule.of(
            run, lambda forced: scheduled(run, window, lambda index: in_pattern(index, pattern), forced)
        )

    def handlers(self) -> Mapping[str, Handler]:
        return {"stack": self._decide, "branch": self._branch, "norm_modulate": self._norm}

    def check(self, run: RunView) -> Iterable[str]:
        """Refuses a run whose sequences alone are larger than all the memory that there is."""
        schedule = self.schedule(run, "cond")
        if schedule is None or not schedule.skipped:
            return ()
        reason = why_too_large(run, min(self.order + 1, _most_computed(schedule)))
        return (reason,) if reason else ()

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._shown = skips_of(self.planned(run, "cond"))

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        schedule = self.planned(run, branch)
        if schedule is None:
            return super().new_state(run, expert, branch)
        return Sequences(schedule, self.order)

    def evidence(self) -> Mapping[str, object]:
        return dict(self._shown)

    def _decide(self, inner: Callable[[Any], torch.Tensor], site: Site, hidden_states: Any) -> torch.Tensor:
        _, step = self.now()
        state = self.state(step)
        try:
            decision = self.settle(state, step, hidden_states)
            if step.ambiguous:
                self.forget()  # what is kept could belong to another branch, and so could what is computed now
            elif isinstance(state, Sequences):
                self._open(state, step, hidden_states, decision.compute)
            try:
                output = inner(hidden_states)
            except _Unfit:
                decision = Decision(True, Reason.GEOMETRY_CHANGED)
                assert isinstance(state, Sequences)
                state.forced(step)
                self._open(state, step, hidden_states, compute=True)
                output = inner(hidden_states)
            if self._call is not None and self._call.compute:
                self._call.kept.commit(step, hidden_states, output)
            elif self._call is not None:
                self.counters.add("predicted_outputs", self._call.predicted)
        except BaseException:
            self.forget()  # some branches have a sample of this call, and some have none
            raise
        finally:
            self._call = None
        self.record(step, decision)
        return output

    def _open(self, state: Sequences, step: Step, hidden_states: torch.Tensor, compute: bool) -> None:
        """A call begins, in which every branch is computed, or is predicted."""
        if compute:
            state.open(hidden_states)
        self._call = _Call(step, state, compute)

    def _branch(self, inner: Callable[[Any], torch.Tensor], site: Site, x: torch.Tensor) -> torch.Tensor:
        call = self._call
        if call is None:
            return inner(x)
        if call.compute:
            output = inner(x)
            call.kept.keep(site.path, call.step, output)
            return output
        if not call.kept.fits(site.path, x):
            raise _Unfit
        call.predicted += 1
        return call.kept.predict(call.step, site.path)

    def _norm(
        self, inner: Callable[..., torch.Tensor], site: Site, norm: Any, x: torch.Tensor, *rows: Any
    ) -> torch.Tensor:
        """``x`` as it is at a skipped step, where the branch behind the norm does not look at it."""
        if self._call is not None and not self._call.compute:
            return x
        return inner(norm, x, *rows)


def _most_computed(schedule: StaticSchedule) -> int:
    """The most steps that one expert computes."""
    experts = schedule.experts or ("",) * len(schedule.decisions)
    pairs = zip(schedule.decisions, experts, strict=True)
    return max(Counter(expert for decision, expert in pairs if decision.compute).values())
