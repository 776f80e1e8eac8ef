"""The timesteps of a call and the expert of each, computed on a copy of the pipeline's scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from wf_core.api import Schedule
from wf_lib_family.schedule import solver_timesteps


def plan_schedule(pipe: Any, arguments: Mapping[str, Any]) -> tuple[Schedule, int, list[str]]:
    """The schedule, the number of inference steps after ``strength``, and the problems."""
    timesteps, steps, problems = solver_timesteps(pipe, arguments)
    if timesteps is None or problems:
        return Schedule(), steps, problems
    experts = _experts(pipe, timesteps)
    schedule = Schedule(tuple(float(t) for t in timesteps), experts)
    return schedule, steps, _missing(pipe, experts)


def _boundary(pipe: Any) -> float | None:
    ratio = getattr(pipe.config, "boundary_ratio", None)
    return None if ratio is None else ratio * pipe.scheduler.config.num_train_timesteps


def _experts(pipe: Any, timesteps: Any) -> tuple[str, ...]:
    """The expert per step by the pipelines' own comparison, on tensors."""
    boundary = _boundary(pipe)
    return tuple(
        "transformer" if boundary is None or bool(t >= boundary) else "transformer_2" for t in timesteps
    )


def _missing(pipe: Any, experts: tuple[str, ...]) -> list[str]:
    numbered = groupby(enumerate(experts), key=lambda pair: pair[1])
    stretches = [(expert, [i for i, _ in members]) for expert, members in numbered]
    return [
        _missing_reason(pipe, expert, steps, len(experts))
        for expert, steps in stretches
        if getattr(pipe, expert, None) is None
    ]


def _missing_reason(pipe: Any, expert: str, steps: list[int], total: int) -> str:
    which = f"steps {steps[0]} to {steps[-1]} of {total}" if len(steps) > 1 else f"step {steps[0]} of {total}"
    boundary = _boundary(pipe)
    if boundary is None:
        return f"{which} need {expert}, which the pipeline does not have; load it."
    if expert == "transformer_2":
        why = f"a boundary is given, second expert missing: {which} (timesteps below {boundary:g})"
        return f"{why} need transformer_2; load it, or set boundary_ratio to None."
    why = f"a boundary is given, first expert missing: {which} (timesteps from {boundary:g} up)"
    return f"{why} need transformer; load it, or start below the boundary."
