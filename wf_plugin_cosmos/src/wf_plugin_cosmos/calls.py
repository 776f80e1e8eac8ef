"""What a call of a Cosmos pipeline amounts to: the schedule, the branches, the facts and the problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wf_core.api import CallPlan
from wf_lib_family.arguments import count_prompts
from wf_plugin_cosmos import checks
from wf_plugin_cosmos.geometry import measure
from wf_plugin_cosmos.schedule import plan_schedule
from wf_plugin_cosmos.stock import ROOT


def plan_call(pipe: Any, arguments: Mapping[str, Any]) -> CallPlan:
    """The plan of ``pipe(**arguments)`` for the pipelines of Predict1, Predict2, Predict2.5 and Transfer2.5.

    ``arguments`` are bound: every parameter of the call by name, its default where the caller gave none.
    """
    schedule, steps, problems = plan_schedule(pipe, arguments)
    branches, batch = count_branches(arguments), batch_size(arguments)
    facts: dict[str, Any] = {
        "run.num_inference_steps": steps,
        "run.steps": len(schedule.timesteps),
        "run.guidance_scale": arguments.get("guidance_scale"),
        "run.branches": branches,
        "run.batch": batch,
        "run.fps": arguments.get("fps"),
    }
    root = getattr(pipe, ROOT, None)
    problems = [*problems, *checks.safety(pipe), *checks.parts(pipe, arguments)]
    if root is not None:
        geometry, sizes = measure(pipe, root, arguments)
        problems += [*checks.packages(pipe, root, arguments), *sizes]
        problems += checks.one_dtype(pipe, root, arguments, branches)
        if geometry is not None:
            facts |= geometry.facts()
            problems += [
                *checks.positions(root, geometry),
                *checks.latents_fit(root, arguments, batch, geometry),
                *checks.one_loop(pipe, root, arguments),
            ]
    known = {name: value for name, value in facts.items() if value is not None}
    return CallPlan(schedule, branches, known, tuple(problems))


def count_branches(arguments: Mapping[str, Any]) -> int:
    """Transformer calls per step: two with guidance, the conditional one first."""
    scale = arguments.get("guidance_scale")
    return 2 if scale is not None and bool(scale > 1) else 1


def batch_size(arguments: Mapping[str, Any]) -> int | None:
    """Videos (or images) in one call: prompts times videos per prompt."""
    prompts = count_prompts(arguments)
    each = arguments.get("num_videos_per_prompt") or arguments.get("num_images_per_prompt") or 1
    return None if prompts is None else prompts * each
