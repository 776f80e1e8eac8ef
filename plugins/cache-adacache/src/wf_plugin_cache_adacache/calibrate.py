"""``wf calibrate adacache``: log the changes of the watched block over dense runs, and choose the codebook by them.

Every step is computed. For each pair of consecutive solver steps of one expert and branch, and each sample of the
batch, the change is kept that the rule would look up, weighted by motion as the rule weighs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wf_core.api import BadInput, Calibrator, model_id
from wf_plugin_cache_adacache import books
from wf_plugin_cache_adacache.cache import is_watched
from wf_plugin_cache_adacache.fit import codebook, quantile
from wf_plugin_cache_adacache.rule import Rater
from wf_plugin_cache_adacache.settings import watched_block
from wf_plugin_cache_adacache.signals import gated, measure, tokens_per_frame, whole

if TYPE_CHECKING:
    import torch

    from wf_core.api import Facts, Handler, RunView, Site, Step

SCHEMA = 1
LEAST = 10
"""Changes that are needed at least: below that a quantile says nothing."""


@dataclass(frozen=True, slots=True)
class Point:
    """One sample's change from one solver step to the next."""

    step: int
    expert: str
    branch: str
    change: float


@dataclass(slots=True)
class _Branch:
    """What the last call of one expert and branch left."""

    rater: Rater
    step: int = -1
    signal: torch.Tensor | None = field(default=None)


class AdaCacheCalibrator(Calibrator):
    """Collects points over any number of runs; ``result`` makes one codebook of them all."""

    def __init__(self, options: Mapping[str, Any], facts: Facts) -> None:
        super().__init__()
        self.points: list[Point] = []
        self.runs = 0
        self.block = watched_block(options, facts)
        self.motion = books.motion() if options.get("motion", True) else None
        self._model = model_id(facts)
        self._steps = 0
        self._seen: tuple[torch.Tensor, ...] = ()
        self._branches: dict[tuple[str, str], _Branch] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {**super().handlers(), "gated_residual": self._watch}

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._forget()
        self.runs += 1

    def end(self) -> None:
        super().end()
        self._forget()

    def held_tensors(self) -> tuple[torch.Tensor, ...]:
        kept = (*self._seen, *(branch.signal for branch in self._branches.values()))
        return tuple(tensor for tensor in kept if tensor is not None)

    def observe(self, step: Step, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        signal, self._seen = whole(self._seen), ()
        run = self._run
        if run is None or step.ambiguous or signal is None:
            self._branches.clear()
            return
        total = run.total(step)
        self._steps = max(self._steps, total)
        branch = self._branches.setdefault((step.expert, step.branch), _Branch(self._rater()))
        older = branch.signal
        if older is None or step.index != branch.step + 1 or older.shape != signal.shape:
            branch.rater.restart()
        else:
            for change in self._changes(branch.rater, step, total, signal, older):
                self.points.append(Point(step.index, step.expert, step.branch, change))
        branch.step, branch.signal = step.index, signal

    def result(self) -> Mapping[str, Any]:
        """The preset file: the codebook, what it was measured with, and how the changes are spread."""
        changes = sorted(point.change for point in self.points if math.isfinite(point.change))
        if len(changes) < LEAST:
            raise BadInput(
                f"adacache: {len(changes)} changes of block {self.block} were seen, a codebook needs {LEAST}; "
                "calibrate with more steps or prompts"
            )
        book = codebook(changes, self._steps)
        return {
            "schema": SCHEMA,
            "feature": books.FEATURE,
            "model": self._model,
            "thresholds": list(book.thresholds),
            "rates": list(book.rates),
            "num_inference_steps": self._steps,
            "block": self.block,
            "motion": self.motion is not None,
            "spread": {
                "points": len(changes),
                "not_finite": len(self.points) - len(changes),
                "least": changes[0],
                "quantiles": {str(share): quantile(changes, share) for share in (0.1, 0.25, 0.5, 0.75, 0.9)},
                "greatest": changes[-1],
                "median_rate": book.rate(quantile(changes, 0.5)),
                "runs": self.runs,
                "branches": sorted({point.branch for point in self.points}),
                "experts": sorted({point.expert for point in self.points}),
            },
        }

    def _changes(
        self, rater: Rater, step: Step, total: int, signal: torch.Tensor, older: torch.Tensor
    ) -> tuple[float, ...]:
        weighed = self.motion is not None and self.motion.covers(step.index, total)
        tokens = tokens_per_frame(signal, step.grid) if weighed else 0
        moved, *motions = measure(signal, older, tokens).tolist()
        return rater.changes(moved, motions[0] if motions else None, 1)

    def _rater(self) -> Rater:
        return Rater(books.published()["fast"], self.motion)

    def _watch(
        self,
        inner: Callable[..., torch.Tensor],
        site: Site,
        x: torch.Tensor,
        out: torch.Tensor,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        if is_watched(site, self.block):
            self._seen = (*self._seen, gated(out, gate))
        return inner(x, out, gate)

    def _forget(self) -> None:
        self._seen = ()
        self._branches.clear()
