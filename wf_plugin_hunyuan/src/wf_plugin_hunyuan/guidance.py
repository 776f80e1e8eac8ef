"""How many transformer calls a step takes: true guidance of HunyuanVideo, the guider of 1.5."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any


def scale_of(pipe: Any, arguments: Mapping[str, Any]) -> Any:
    """The weight of the guidance: embedded in the call of HunyuanVideo, the guider's own on 1.5."""
    if "guidance_scale" in arguments:
        return arguments["guidance_scale"]
    return getattr(getattr(pipe, "guider", None), "guidance_scale", None)


def count_branches(pipe: Any, arguments: Mapping[str, Any], steps: int) -> int:
    """Transformer calls per step, the most of any step: a guider may leave branches out of some."""
    guider = getattr(pipe, "guider", None)
    if guider is not None:
        return max(_conditions(guider, steps), default=1)
    scale = arguments.get("true_cfg_scale")
    return 2 if scale is not None and bool(scale > 1) and _has_negative(arguments) else 1


def guider_problems(pipe: Any, arguments: Mapping[str, Any], steps: int) -> Iterator[str]:
    """A guider that still stands at the end of an earlier call may think that no step needs the negative prompt: the
    pipeline asks it before the first step, and would then call the transformer without text.
    """
    guider = getattr(pipe, "guider", None)
    if guider is None or count_branches(pipe, arguments, steps) == 1:
        return
    if guider.num_conditions == 1 and arguments.get("negative_prompt_embeds") is None:
        yield (
            "the guider stands at the last step of an earlier call, where it guides no more, so diffusers would not "
            "encode the negative prompt: pass negative_prompt_embeds, or give the pipeline pipe.guider.new()."
        )


def _has_negative(arguments: Mapping[str, Any]) -> bool:
    """As the pipelines see it: a negative prompt, or its embeddings with the pooled ones."""
    embeds = ("negative_prompt_embeds", "negative_pooled_prompt_embeds")
    return arguments.get("negative_prompt") is not None or all(
        arguments.get(name) is not None for name in embeds
    )


def _conditions(guider: Any, steps: int) -> Iterator[int]:
    """The guider's own answer for each step, asked of a copy."""
    asked = copy.deepcopy(guider)
    for step in range(steps):
        asked.set_state(step=step, num_inference_steps=steps, timestep=None)
        yield int(asked.num_conditions)
