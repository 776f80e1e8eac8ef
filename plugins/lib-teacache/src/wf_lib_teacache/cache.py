"""The technique on a time signal: TeaCache's decisions around the stack of blocks, with the residual continued to a
chosen order.

The signal depends on the timestep alone, so the schedule of a run is a constant of its timesteps and checkpoint:
it is made once, before the first model call, and is the same for every prompt, branch and rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from wf_core.api import CacheState, Decision, ScheduledCache, StaticSchedule
from wf_lib_teacache.plan import StaticPlan, build, decide_all, fault, is_static
from wf_lib_teacache.states import LiveState

if TYPE_CHECKING:
    from wf_core.api import RunView
    from wf_lib_teacache.settings import Settings

_Key = tuple[tuple[float, ...], tuple[str, ...]]


class TeaCache(ScheduledCache):
    """One session's TeaCache. Source of the rule: arXiv 2411.19108, section 3.

    ``order`` 0 adds the last computed residual again, as the paper does; 1 continues the line through the last two.
    """

    def __init__(self, settings: Settings, order: int = 0) -> None:
        super().__init__(order)
        self.settings = settings
        self._plan: StaticPlan | None = None
        self._checked: tuple[_Key, StaticPlan] | None = None
        self._shown: dict[str, object] = {}

    def check(self, run: RunView) -> Iterable[str]:
        """Refuses a schedule that leaves the polynomial's domain, before the first model call."""
        if not is_static(run):
            return ()
        plan = build(run, self.settings)
        self._checked = ((run.timesteps, run.experts), plan)
        reason = fault(plan, self.settings)
        return (reason,) if reason else ()

    def begin(self, run: RunView) -> None:
        self._plan = self._static_plan(run)
        self._checked = None
        self._shown = self._describe(self._plan)
        super().begin(run)

    def schedule(self, run: RunView, branch: str) -> StaticSchedule | None:
        plan = self._plan
        if plan is None:
            return None
        distances = plan.distances

        def rule(forced: Collection[int]) -> tuple[Decision, ...]:
            decided = plan.decisions if not forced else decide_all(distances, self.settings, forced)
            return tuple(Decision(d.compute, d.reason, d.compared) for d in decided)

        return StaticSchedule.of(run, rule)

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        if self._plan is None:
            return LiveState(self.settings, run, expert, self.order, self.counters)
        return super().new_state(run, expert, branch)

    def end(self) -> None:
        super().end()
        self._plan = None

    def evidence(self) -> Mapping[str, object]:
        return dict(self._shown)

    def _static_plan(self, run: RunView) -> StaticPlan | None:
        if not is_static(run):
            return None
        if self._checked is not None and self._checked[0] == (run.timesteps, run.experts):
            return self._checked[1]
        return build(run, self.settings)

    def _describe(self, plan: StaticPlan | None) -> dict[str, object]:
        settings = self.settings
        shown = {"decisions": "live" if plan is None else "static", **shown_of(settings, self.order)}
        if plan is not None:
            shown["scheduled_skips_per_branch"] = plan.skipped
            if settings.domain is not None:
                shown["steps_outside_fit"] = plan.outside(*settings.domain)
        return shown


def shown_of(settings: Settings, order: int) -> dict[str, object]:
    """What the report shows of a session's settings."""
    shown: dict[str, object] = {
        "signal": settings.signal,
        "threshold": settings.threshold,
        "first": settings.first,
        "last": settings.last,
        "source": settings.source,
    }
    if order:
        shown["order"] = order
    if settings.confidence:
        shown["confidence"] = settings.confidence
    if settings.lent:
        shown["uncalibrated"] = settings.lent
    if settings.r2 is not None:
        shown["r2"] = settings.r2
    return shown
