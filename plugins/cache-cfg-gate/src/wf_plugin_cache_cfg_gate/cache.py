"""The feature: a gate around the unconditional call of each step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from wf_core.api import (
    CacheState,
    Decision,
    FeatureCache,
    Reason,
    RunView,
    StaticSchedule,
)
from wf_plugin_cache_cfg_gate.rule import decisions, first_gated, least_fraction
from wf_plugin_cache_cfg_gate.states import ComputedState, ConditionalState, GatedState, StepOutput

if TYPE_CHECKING:
    import torch


class CfgGate(FeatureCache):
    """One session's gate. ``fraction`` is the share of the steps, from the start, that run both branches.

    Every decision is known before the first model call. Counts ``full_steps`` and ``reused_deltas``: the unconditional
    calls that were computed, and those that were not.
    """

    seam = "guidance"

    def __init__(self, fraction: float) -> None:
        super().__init__()
        self.fraction = fraction
        self._cond = StepOutput()
        self._schedule: StaticSchedule | None = None

    def check(self, run: RunView) -> Iterable[str]:
        """Refuses a run without a full step before the gate: there would be no difference to reuse."""
        total = run.num_inference_steps
        if not total or first_gated(self.fraction, total) >= 1:
            return ()
        return (
            f"cfg_gate_step={self.fraction:g} of {total} steps is less than one step: both branches would never run, "
            f"and there would be no difference to reuse; give at least {least_fraction(total):g}.",
        )

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._schedule = self._planned(run)
        if self._schedule is not None and not self._schedule.skipped:
            self.counters.fall_back(
                self.seam,
                f"both branches of all {run.num_inference_steps} steps are computed: none lies behind the gate",
            )

    def end(self) -> None:
        super().end()
        self._schedule = None

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        if self._schedule is None:
            return ComputedState(Reason.UNKNOWN_STEPS if branch == "uncond" else "conditional")
        if branch == "cond":
            return ConditionalState(self._cond)
        if branch == "uncond":
            return GatedState(self._schedule, self._cond, self.counters)
        return ComputedState("another-branch")

    def forget(self) -> None:
        super().forget()
        self._cond.clear()

    def held_tensors(self) -> Iterable[torch.Tensor]:
        return (*super().held_tensors(), *self._cond.held())

    def evidence(self) -> Mapping[str, object]:
        schedule = self._schedule
        return (
            {}
            if schedule is None
            else {"first_gated_step": first_gated(self.fraction, len(schedule.decisions))}
        )

    def _planned(self, run: RunView) -> StaticSchedule | None:
        total, experts = run.num_inference_steps, run.experts
        if not total:
            return None

        def rule(forced: Collection[int]) -> tuple[Decision, ...]:
            return tuple(Decision(*found) for found in decisions(self.fraction, total, experts, forced))

        # No timesteps: the gate goes by the number of the step, and comparing them would read tensors.
        return StaticSchedule(rule, rule(()), experts=experts)
