"""The static schedule of one run: every decision known before the first model call."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wf_lib_teacache.rule import Distances, StepDecision, first_fault, schedule
from wf_lib_teacache.signals import run_distances

if TYPE_CHECKING:
    from wf_core.api import RunView
    from wf_lib_teacache.settings import Settings


@dataclass(frozen=True, slots=True)
class StaticPlan:
    """The schedule's timesteps, the expert and distance of each, and what the rule decides. One per solver step."""

    timesteps: tuple[float, ...]
    experts: tuple[str, ...]
    distances: Distances
    decisions: tuple[StepDecision, ...]

    @property
    def skipped(self) -> int:
        return sum(not decision.compute for decision in self.decisions)

    @property
    def free(self) -> int:
        """Steps that the rule decides about; the others are always computed."""
        return sum(decision.compared is not None for decision in self.decisions)

    def outside(self, low: float, high: float) -> int:
        """Free steps whose distance lies outside ``[low, high]``, the range that the polynomial was fitted on."""
        free = (d.distance for d in self.decisions if d.compared is not None and d.distance is not None)
        return sum(not low <= distance <= high for distance in free)


def is_static(run: RunView) -> bool:
    """Whether the run's whole schedule is known beforehand."""
    return bool(run.timesteps) and len(run.experts) == len(run.timesteps)


def decide_all(
    distances: Distances, settings: Settings, forced: Collection[int] = ()
) -> tuple[StepDecision, ...]:
    """The rule with a session's settings."""
    return schedule(
        distances,
        settings.coefficients,
        settings.threshold,
        settings.first,
        settings.last,
        forced,
        settings.max_skip,
    )


def build(run: RunView, settings: Settings) -> StaticPlan:
    """Evaluates the time signal at the run's timesteps and applies the rule; one transfer from the device."""
    distances = run_distances(run, settings.signal)
    return StaticPlan(run.timesteps, run.experts, distances, decide_all(distances, settings))


def fault(plan: StaticPlan, settings: Settings) -> str:
    """One sentence when the schedule leaves the polynomial's domain, naming the step and its distance; else ""."""
    index = first_fault(plan.decisions, settings.threshold)
    if index is None:
        return ""
    decision = plan.decisions[index]
    compared = decision.compared if decision.compared is not None else math.nan
    harm = (
        f"the accumulated estimate falls to {compared:.4g}, below -{settings.threshold:g}, and later steps would be "
        "skipped without end"
        if math.isfinite(compared)
        else "the accumulated estimate is no longer a finite number"
    )
    return (
        f"teacache: at step {index} of {len(plan.decisions)} (counted from 0, timestep "
        f"{plan.timesteps[index]:g}) the signal {settings.signal} changes by d={decision.distance:.4g}, where the "
        f"polynomial of {settings.source} gives {decision.estimate:.4g}: {harm}; {_way_out(plan, settings, index)}"
        "use a number of steps and a shift nearer to those of the fit, or calibrate for this schedule with "
        "`wf calibrate teacache`."
    )


def _way_out(plan: StaticPlan, settings: Settings, index: int) -> str:
    """The setting of ``first`` that leaves the faulty step out, where that mends the schedule and skips are left."""
    mended = replace(settings, first=index + 1)
    decisions = decide_all(plan.distances, mended)
    if first_fault(decisions, settings.threshold) is not None or all(d.compute for d in decisions):
        return ""
    return f"compute it always, with first={mended.first}, or "
