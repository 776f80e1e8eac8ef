"""What a call of a HunyuanVideo pipeline amounts to: the schedule, the branches, the facts and the problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from wf_core.api import CallPlan, Schedule
from wf_lib_family.arguments import count_prompts
from wf_lib_family.schedule import sigma_timesteps
from wf_plugin_hunyuan import checks, guidance
from wf_plugin_hunyuan.geometry import measure
from wf_plugin_hunyuan.stock import ROOT, is_15


def plan_call(pipe: Any, arguments: Mapping[str, Any]) -> CallPlan:
    """The plan of ``pipe(**arguments)`` for the text-to-video and image-to-video pipelines of both generations.

    ``arguments`` are bound: every parameter of the call by name, its default where the caller gave none.
    """
    root = getattr(pipe, ROOT, None)
    if root is None:
        return CallPlan(Schedule(), 1, {}, ("the pipeline has no transformer; load one.",))
    schedule, steps, problems = plan_schedule(pipe, root, arguments)
    branches, batch = guidance.count_branches(pipe, arguments, steps), batch_size(arguments)
    facts: dict[str, Any] = {
        "run.num_inference_steps": steps,
        "run.steps": len(schedule.timesteps),
        "run.guidance_scale": guidance.scale_of(pipe, arguments),
        "run.branches": branches,
        "run.batch": batch,
    }
    problems += [
        *checks.parts(pipe, arguments),
        *checks.image_form(root, arguments),
        *checks.text_complete(root, arguments, branches),
        *checks.one_video_each(pipe, root, arguments),
        *checks.one_clip_decoded(pipe, root, arguments, batch),
        *guidance.guider_problems(pipe, arguments, steps),
    ]
    geometry, sizes = measure(pipe, root, arguments)
    problems += sizes
    if geometry is not None:
        facts |= geometry.facts()
        problems += checks.latents_fit(pipe, root, arguments, batch, geometry)
    known = {name: value for name, value in facts.items() if value is not None}
    return CallPlan(schedule, branches, known, tuple(problems))


def plan_schedule(pipe: Any, root: Any, arguments: Mapping[str, Any]) -> tuple[Schedule, int, list[str]]:
    """The timesteps as the transformer is given them, the number of steps, and the problems."""
    timesteps, steps, problems = sigma_timesteps(pipe, arguments)
    if timesteps is None or problems:
        return Schedule(), steps, problems
    first, later = _dtypes(pipe, root)
    values = *timesteps[:1].to(first).tolist(), *timesteps[1:].to(later).tolist()
    return Schedule(values, (ROOT,) * len(values)), steps, []


def _dtypes(pipe: Any, root: Any) -> tuple[torch.dtype, torch.dtype]:
    """The dtype of the first timestep and of the others: the pipelines cast them to that of the latents, so that in
    bfloat16 933.3 becomes 932.

    Latents are in the transformer's dtype on 1.5. On HunyuanVideo they are drawn in float32, and the Euler scheduler
    gives them back in the dtype of what the transformer predicted; a first frame that is replaced makes them float32
    again.
    """
    if is_15(root):
        return root.dtype, root.dtype
    keeps = not isinstance(pipe.scheduler, FlowMatchEulerDiscreteScheduler)
    if keeps or root.config.image_condition_type == "token_replace":
        return torch.float32, torch.float32
    return torch.float32, root.dtype


def batch_size(arguments: Mapping[str, Any]) -> int | None:
    """Videos in one call: prompts times videos per prompt."""
    prompts = count_prompts(arguments)
    each = arguments.get("num_videos_per_prompt") or 1
    return None if prompts is None else prompts * each
