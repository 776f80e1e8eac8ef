"""The timesteps of a call, computed on a copy of the pipeline's scheduler."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np


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


def sigma_timesteps(pipe: Any, arguments: Mapping[str, Any]) -> tuple[Any, int, list[str]]:
    """The same for the pipelines that hand their scheduler sigmas: the caller's ``sigmas``, or N of them evenly spaced
    from 1 down to 1/N.
    """
    sigmas: Any = arguments.get("sigmas")
    steps: Any = arguments.get("num_inference_steps", 0) if sigmas is None else len(sigmas)
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        return None, 0, [f"num_inference_steps must be a whole number of at least 1, got {steps!r}."]
    steps = int(steps)
    if getattr(pipe, "scheduler", None) is None:
        return None, steps, ["the pipeline has no scheduler; load one."]
    scheduler = copy.deepcopy(pipe.scheduler)
    if "sigmas" not in inspect.signature(scheduler.set_timesteps).parameters:
        name = type(scheduler).__name__
        return None, steps, [f"{name} takes no sigmas, which this pipeline gives it; use another scheduler."]
    given = np.linspace(1.0, 0.0, steps + 1)[:-1] if sigmas is None else sigmas
    scheduler.set_timesteps(sigmas=given, device="cpu")
    return scheduler.timesteps, len(scheduler.timesteps), []
