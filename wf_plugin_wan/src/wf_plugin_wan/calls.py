"""What a call of a Wan pipeline amounts to: the schedule, the branches, the facts and the problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wf_core.api import CallPlan
from wf_lib_family.arguments import count_prompts, latents_fit
from wf_plugin_wan import checks
from wf_plugin_wan.geometry import Geometry, measure
from wf_plugin_wan.schedule import plan_schedule
from wf_plugin_wan.stock import EXPERTS


def plan_call(pipe: Any, arguments: Mapping[str, Any]) -> CallPlan:
    """The plan of ``pipe(**arguments)`` for the text, image and video pipelines and VACE.

    ``arguments`` are bound: every parameter of the call by name, its default where the caller gave none.
    """
    roots = {name: root for name in EXPERTS if (root := getattr(pipe, name, None)) is not None}
    schedule, steps, problems = plan_schedule(pipe, arguments)
    branches = count_branches(arguments)
    facts: dict[str, Any] = {
        "run.num_inference_steps": steps,
        "run.steps": len(schedule.timesteps),
        "run.guidance_scale": arguments.get("guidance_scale"),
        "run.branches": branches,
        "run.batch": batch_size(arguments),
    }
    if arguments.get("guidance_scale_2") is not None:
        facts["run.guidance_scale_2"] = arguments["guidance_scale_2"]
    problems += [
        *checks.parts(pipe, arguments),
        *checks.rope_tables(roots),
        *checks.text_length(roots, arguments),
    ]
    if roots:
        geometry, sizes = measure(pipe, next(iter(roots.values())), arguments)
        problems += sizes
        if geometry is not None:
            facts |= geometry.facts()
            problems += [*checks.rope_length(roots, geometry), *_latents(pipe, roots, arguments, geometry)]
    known = {name: value for name, value in facts.items() if value is not None}
    return CallPlan(schedule, branches, known, tuple(problems))


def count_branches(arguments: Mapping[str, Any]) -> int:
    """Transformer calls per step: two with guidance, which the first scale alone decides, for both experts."""
    scale = arguments.get("guidance_scale")
    return 2 if scale is not None and bool(scale > 1) else 1


def batch_size(arguments: Mapping[str, Any]) -> int | None:
    """Videos in one call: prompts times videos per prompt (video-to-video makes one per prompt)."""
    prompts = count_prompts(arguments)
    each = 1 if "strength" in arguments else arguments.get("num_videos_per_prompt") or 1
    return None if prompts is None else prompts * each


def _latents(
    pipe: Any, roots: Mapping[str, Any], arguments: Mapping[str, Any], geometry: Geometry
) -> list[str]:
    """Image-to-video draws latents of the VAE's channels and adds its condition; all others of the transformer's."""
    batch = batch_size(arguments)
    if batch is None:
        return []
    channels = next(iter(roots.values())).config.in_channels
    if "last_image" in arguments:
        vae = getattr(pipe, "vae", None)
        if vae is None:
            return []
        channels = vae.config.z_dim
    return list(latents_fit(arguments, (batch, channels, *geometry.latent)))
