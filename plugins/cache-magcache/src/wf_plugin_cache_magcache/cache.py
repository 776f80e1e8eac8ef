"""The feature: MagCache around the stack of blocks. Every decision of a run is known before its first model call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from wf_core.api import ScheduledCache, StaticSchedule
from wf_plugin_cache_magcache.plan import Segment, decisions, segments

if TYPE_CHECKING:
    from wf_core.api import RunView
    from wf_plugin_cache_magcache.settings import Settings

COARSE = (
    "this run has fewer than half of the steps that the ratios were measured at: each of them changes more than its "
    "ratio says; measure ratios at this number of steps with `wf calibrate magcache`"
)
SHORTENED = (
    "a run that leaves out first steps takes the ratios of a whole one, spread over the steps that are left"
)


class MagCache(ScheduledCache):
    """One session's MagCache. On a skipped step the newest residual is added as it is, not scaled by the product."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self._shown: dict[str, object] = {}

    def schedule(self, run: RunView, branch: str) -> StaticSchedule | None:
        if not run.num_inference_steps:
            return None
        return StaticSchedule.of(run, partial(decisions, run, self.settings, branch))

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._shown = self._describe(run)

    def evidence(self) -> Mapping[str, object]:
        return dict(self._shown)

    def _describe(self, run: RunView) -> dict[str, object]:
        settings = self.settings
        shown: dict[str, object] = {
            "source": settings.source,
            "threshold": settings.threshold,
            "max_skip": settings.max_skip,
        }
        if settings.lent:
            shown["uncalibrated"] = settings.lent
        planned = self.schedules
        if not planned:
            return shown
        parts = segments(run, settings, "cond")
        shown["start"] = {part.expert: part.start for part in parts if not part.dense}
        shown["scheduled_skips"] = {branch: schedule.skipped for branch, schedule in planned.items()}
        shown["interpolated"] = {
            part.expert: {"from": part.measured, "to": len(part.steps)} for part in parts if _is_changed(part)
        }
        if notes := _notes(settings, parts):
            shown["notes"] = notes
        return shown


def _is_changed(part: Segment) -> bool:
    return part.measured != len(part.steps) and not part.dense


def _notes(settings: Settings, parts: tuple[Segment, ...]) -> list[str]:
    coarse = any(2 * len(part.steps) < part.measured and not part.dense for part in parts)
    return [COARSE] * coarse + [SHORTENED] * settings.shortened
