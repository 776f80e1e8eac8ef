"""The timesteps of a call and the expert of each, computed on a copy of the pipeline's scheduler."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from itertools import groupby
from numbers import Integral
from typing import Any

from wf_core.api import Schedule


def plan_schedule(pipe: Any, arguments: Mapping[str, Any]) -> tuple[Schedule, int, list[str]]:
    """The schedule, the number of inference steps after ``strength``, and the problems."""
    timesteps, steps, problems = solver_timesteps(pipe, arguments)
    if timesteps is None or problems:
        return Schedule(), steps, problems
    experts = _experts(pipe, timesteps)
    schedule = Schedule(tuple(float(t) for t in timesteps), experts)
    return schedule, steps, _missing(pipe, experts)


def solver_timesteps(pipe: Any, arguments: Mapping[str, Any]) -> tuple[Any, int, list[str]]:
    """The timesteps ``[N]`` as the pipeline's own scheduler emits them (None if not known), on the CPU."""
    given = arguments.get("timesteps")
    steps: Any = arguments.get("num_inference_steps", 0) if given is None else len(given)
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        return None, 0, [f"num_inference_steps must be a whole number of at least 1, got {steps!r}."]
    steps = int(steps)
    if getattr(pipe, "scheduler", None) is None:
        return None, steps, ["the pipeline has no scheduler; load one."]
    scheduler = copy.deepcopy(pipe.scheduler)
    if given is None:
        scheduler.set_timesteps(steps, device="cpu")
    elif "timesteps" in inspect.signature(scheduler.set_timesteps).parameters:
        scheduler.set_timesteps(timesteps=given, device="cpu")
    else:
        name = type(scheduler).__name__
        return None, steps, [f"{name} takes no custom timesteps; pass num_inference_steps alone."]
    return _shortened(pipe, scheduler.timesteps, steps, arguments.get("strength"))


def _shortened(pipe: Any, timesteps: Any, steps: int, strength: Any) -> tuple[Any, int, list[str]]:
    """Video-to-video leaves out the first steps, according to ``strength``."""
    if strength is None:
        return timesteps, steps, []
    kept, left = pipe.get_timesteps(steps, timesteps, strength, "cpu")
    if len(kept) == 0:
        least = f"it must be at least {1 / steps:.3g}"
        return None, left, [f"strength {strength} leaves none of {steps} steps; {least}."]
    return kept, left, []


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
