"""What one branch of one expert remembers in a run: its residual, the watched signal, and how long both last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wf_core.api import (
    Decision,
    Reading,
    Reason,
    ResidualState,
    geometry,
)
from wf_plugin_cache_adacache.rule import Rater
from wf_plugin_cache_adacache.signals import gated, measure, tokens_per_frame, whole

if TYPE_CHECKING:
    import torch

    from wf_core.api import FeatureCounters, Step
    from wf_plugin_cache_adacache.settings import Settings

UNSEEN = "the watched block's self-attention was not seen; the next step is computed"
NO_FRAMES = "the tokens are not those of the grid's frames; the change was not weighted by motion"


class AdaState(ResidualState):
    """``total`` is the run's number of steps, 0 where it is not known."""

    def __init__(self, settings: Settings, counters: FeatureCounters, total: int) -> None:
        super().__init__()
        self._settings = settings
        self._counters = counters
        self._total = total
        self._rater = Rater(settings.book.scaled(total), settings.motion, settings.threshold)
        self._seen: tuple[torch.Tensor, ...] = ()
        self._signal: torch.Tensor | None = None
        self._measured: tuple[Reading, int, int] | None = None
        """How far the signal moved, the step where that was measured, and the steps since the signal before it."""
        self._due = 0
        self._why = ""
        self._change: float | None = None

    def decide(self, step: Step, value: Any) -> Decision:
        self._seen = ()
        self._rate()
        index, kept = step.index, self.kept_at
        reason = self._settings.window.reason(index, self._total) or self._unknown()
        if reason or kept is None:
            return Decision(True, reason or Reason.NOTHING_CACHED, self._change)
        if index >= self._due:
            return Decision(True, "missed-step" if index > self._due else self._why, self._change)
        return Decision(index <= kept, "missed-step" if index <= kept else "within-rate", self._change)

    def see(self, out: torch.Tensor, gate: torch.Tensor | None) -> None:
        """The watched block's self-attention output ``[B, L, D]`` and its gate, in a computed call.

        A model whose first frame has a gate of its own gives that frame's tokens first and the others after them.
        """
        self._seen = (*self._seen, gated(out, gate))

    def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
        before = self.kept_at
        super().commit(step, value, output)
        older, self._signal, self._seen = self._signal, whole(self._seen), ()
        self._due, self._why, self._change = step.index + 1, "first-comparison", None
        self._measured = None
        if self._signal is None:
            self._why = "unseen"
            self._counters.fall_back("gated_residual", UNSEEN)
        elif (
            older is None
            or before is None
            or before >= step.index
            or geometry(older) != geometry(self._signal)
        ):
            self._rater.restart()
        elif not self._closed(step.index + 1):
            numbers = Reading(measure(self._signal, older, self._tokens(step, self._signal)))
            self._measured = numbers, step.index, step.index - before

    def held(self) -> Iterable[torch.Tensor]:
        measured = None if self._measured is None else self._measured[0].copied
        return (*super().held(), *(t for t in (self._signal, *self._seen, measured) if t is not None))

    def _rate(self) -> None:
        """Take up what the last computed call measured: only now, so that the device is not waited for in between."""
        if self._measured is None:
            return
        (reading, at, gap), self._measured = self._measured, None
        moved, *motions = reading.numbers().tolist()
        self._counters.add("host_syncs")
        verdict = self._rater.verdict(moved, motions[0] if motions else None, gap)
        self._due = at + verdict.rate
        self._change = verdict.change if verdict.finite else None
        self._why = "rate-over" if verdict.finite else Reason.NOT_FINITE
        if verdict.cut:
            self._why = "threshold"

    def _tokens(self, step: Step, signal: torch.Tensor) -> int:
        motion = self._settings.motion
        if motion is None or not motion.covers(step.index, self._total):
            return 0
        tokens = tokens_per_frame(signal, step.grid)
        if not tokens and step.grid[0] > 1:
            self._counters.fall_back("gated_residual", NO_FRAMES)
        return tokens

    def _unknown(self) -> str:
        return Reason.UNKNOWN_STEPS if not self._total and self._settings.needs_total else ""

    def _closed(self, index: int) -> bool:
        """Whether every step from this one on is computed anyway, so that no rate is needed."""
        if self._unknown():
            return True
        return bool(self._total) and index >= self._total - self._settings.window.last
