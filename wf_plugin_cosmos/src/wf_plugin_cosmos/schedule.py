"""The timesteps of a call, as the transformer is given them, computed on a copy of the pipeline's scheduler.

Only Predict1 hands on what its scheduler calls timesteps (``0.25 ln sigma``, which may be negative); Predict2 makes
``sigma / (sigma + 1)`` of the sigmas and 2.5 takes the sigmas themselves. Most round them to the model's dtype. Frames
that are given have a small timestep of their own, so that a step's timestep is the largest of its frames.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from wf_core.api import Schedule
from wf_lib_family.schedule import solver_timesteps
from wf_plugin_cosmos.geometry import (
    clip_frames,
    count_chunks,
    frames_at_once,
    frames_of,
    shared_frames,
)
from wf_plugin_cosmos.stock import PREDICT1, PREDICT2, PREDICT2_5, ROOT, generation


def plan_schedule(pipe: Any, arguments: Mapping[str, Any]) -> tuple[Schedule, int, list[str]]:
    """The schedule, the number of inference steps, and the problems; no schedule for a pipeline that is not stock."""
    timesteps, steps, problems = solver_timesteps(pipe, arguments)
    root = getattr(pipe, ROOT, None)
    if timesteps is None or problems or root is None or not generation(pipe):
        return Schedule(), steps, problems
    given = _given(pipe, arguments, timesteps, steps, root.dtype)
    values = tuple(float(t) for t in given)
    return Schedule(values, (ROOT,) * len(values)), steps, []


def _given(
    pipe: Any, arguments: Mapping[str, Any], timesteps: Any, steps: int, dtype: torch.dtype
) -> torch.Tensor:
    """One timestep ``[N]`` per step, of each chunk of a clip that is made in chunks."""
    kind = generation(pipe)
    if kind == PREDICT1:
        given: torch.Tensor = timesteps.to(dtype)
        return given
    sigmas = _sigmas(pipe, kind, steps)[:steps]
    if kind == PREDICT2:
        return _with_frames(sigmas / (sigmas + 1), *_frames_given(pipe, kind, arguments)).to(dtype)
    if kind == PREDICT2_5:
        return _with_frames(sigmas, *_frames_given(pipe, kind, arguments))
    return _of_chunks(pipe, arguments, sigmas.to(dtype).float())


def _of_chunks(pipe: Any, arguments: Mapping[str, Any], timesteps: torch.Tensor) -> torch.Tensor:
    """The first chunk is given no frames, each later one those that it takes over from the one before."""
    shared, time = shared_frames(pipe, arguments), pipe.vae_scale_factor_temporal
    own = float(arguments.get("conditional_frame_timestep", 0.0)) if shared else None
    are_all = (shared - 1) // time >= (frames_at_once(pipe, arguments) - 1) // time
    later = [_with_frames(timesteps, own, are_all)] * (count_chunks(pipe, arguments) - 1)
    return torch.cat([timesteps, *later])


def _sigmas(pipe: Any, kind: str, steps: int) -> torch.Tensor:
    """The scheduler's sigmas in fp32; Predict2 gives it numbers from 0 to 1 to place them by."""
    scheduler = copy.deepcopy(pipe.scheduler)
    if kind == PREDICT2:
        placed = torch.linspace(0, 1, steps, dtype=torch.float64)
        scheduler.set_timesteps(sigmas=placed.numpy(), device="cpu")  # numpy complains about the tensor
    else:
        scheduler.set_timesteps(steps, device="cpu")
    return torch.as_tensor(scheduler.sigmas, dtype=torch.float32)


def _with_frames(timesteps: torch.Tensor, own: float | None, all_given: bool) -> torch.Tensor:
    """The largest timestep over the frames: ``own`` is that of given ones, None if there are none."""
    if own is None:
        return timesteps
    return torch.full_like(timesteps, own) if all_given else timesteps.clamp(min=own)


def _frames_given(pipe: Any, kind: str, arguments: Mapping[str, Any]) -> tuple[float | None, bool]:
    """The timestep of the frames that the call gives (None: it gives none), and whether these are all."""
    image, video = arguments.get("image"), arguments.get("video")
    clip, time = clip_frames(arguments), pipe.vae_scale_factor_temporal
    frames = 1 if image is not None else 0 if video is None else frames_of(video)
    if kind == PREDICT2:
        sigma = torch.tensor(arguments.get("sigma_conditioning", 0.0), dtype=torch.float32)
        own = float(sigma / (sigma + 1))
    else:
        own = float(arguments.get("conditional_frame_timestep", 0.0))
        if image is None and video is not None:
            frames = time * (arguments.get("num_latent_conditional_frames", 2) - 1) + 1
    if frames == 0 or (own < 0 and kind == PREDICT2_5):
        return None, False
    return own, frames is not None and (frames - 1) // time >= (clip - 1) // time
