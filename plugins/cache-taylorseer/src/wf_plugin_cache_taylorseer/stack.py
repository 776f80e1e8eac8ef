"""``taylorseer``: the residual of the whole stack, computed at every n-th step and extrapolated in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wf_core.api import ScheduledCache, StaticSchedule, Window, scheduled
from wf_plugin_cache_taylorseer.rule import on_interval

if TYPE_CHECKING:
    from wf_core.api import RunView


class TaylorSeer(ScheduledCache):
    """Keeps ``order + 1`` tensors ``[B, L, D]`` for each expert and branch, in the blocks' dtype."""

    def __init__(self, interval: int, order: int = 1, first: int = 1, last: int = 1, start: int = 0) -> None:
        super().__init__(order)
        self._interval = interval
        self._start = start
        self._window = Window(first, last)
        self._shown: dict[str, object] = {}

    def schedule(self, run: RunView, branch: str) -> StaticSchedule | None:
        if not run.num_inference_steps:
            return None
        window, interval, start = self._window, self._interval, self._start
        return StaticSchedule.of(
            run,
            lambda forced: scheduled(run, window, lambda index: on_interval(index - start, interval), forced),
        )

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._shown = skips_of(self.planned(run, "cond"))

    def evidence(self) -> Mapping[str, object]:
        return dict(self._shown)


def skips_of(schedule: StaticSchedule | None) -> dict[str, object]:
    """What the report shows of a schedule, which all branches of a run share."""
    return {} if schedule is None else {"scheduled_skips_per_branch": schedule.skipped}
