"""Facts about one run: the arguments of a pipeline call that conditions may look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wf_core.errors import BadInput
from wf_core.facts import Facts
from wf_core.manifests.options import OptionDecl
from wf_core.names import did_you_mean
from wf_core.values import show

RUN_OPTIONS = {
    option.name: option
    for option in (
        OptionDecl("height", "int", "pixels", min=1),
        OptionDecl("width", "int", "pixels", min=1),
        OptionDecl("num_frames", "int", "frames of the clip", min=1),
        OptionDecl("num_inference_steps", "int", "denoising steps", min=1),
        OptionDecl("guidance_scale", "float", "weight of the guidance"),
        OptionDecl("guidance_scale_2", "float", "weight of the guidance of the second expert"),
        OptionDecl("fps", "float", "frames per second of the clip", above=0),
        OptionDecl("num_videos_per_prompt", "int", "clips per prompt", min=1),
        OptionDecl("flow_shift", "float", "shift of the flow-matching schedule", above=0),
        OptionDecl("branches", "int", "transformer calls per step: 2 under guidance, else 1", min=1),
        OptionDecl("grad_enabled", "bool", "whether the calls are made with gradients"),
    )
}


ONE_TIMESTEP_A_STEP = ("EDMEulerScheduler", "FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler")
"""Schedulers that make as many timesteps as steps are asked for; others, such as Heun's, may make more."""


def run_facts(arguments: Mapping[str, Any] | None) -> Facts:
    """``run.height`` and so on. ``None`` values are left out, as not known.

    Raises `BadInput` for an unknown name and for a value of the wrong type.
    """
    if arguments is not None and not isinstance(arguments, Mapping):
        raise BadInput(f'run is a mapping such as {{"height": 480}}, got {type(arguments).__name__}')
    values = {}
    for name, value in (arguments or {}).items():
        option = RUN_OPTIONS.get(name)
        if option is None:
            raise BadInput(f"run.{name}: no such argument of a run{did_you_mean(str(name), RUN_OPTIONS)}")
        if value is not None:
            values[f"run.{name}"] = option.convert(value, f"run.{name}")
    return Facts.of(values, "run")


def with_derived(facts: Facts) -> Facts:
    """Adds what follows from the call and the model: ``run.size`` (height, width), ``run.token_grid`` (T, H, W after
    patching) with its parts and product, ``run.branches`` where the family's form of guidance decides it, and
    ``run.solver_steps``, the most timesteps of the run, where the pipeline's scheduler is one that makes one a step, or
    none is known.
    """
    derived: dict[str, Any] = {}
    height, width, frames = (facts.get(f"run.{name}") for name in ("height", "width", "num_frames"))
    if height is not None and width is not None:
        derived["run.size"] = (height, width)
    multiples, factor = facts.get("model.pixel_multiple"), facts.get("vae.temporal_factor")
    patch = facts.get("model.patch_size")
    if None not in (height, width, frames, multiples, factor, patch) and not grid_problems(facts):
        grid = (((frames - 1) // factor + 1) // patch[0], height // multiples[0], width // multiples[1])
        derived["run.token_grid"] = grid
        derived.update(zip(("run.grid_frames", "run.grid_height", "run.grid_width"), grid, strict=True))
        derived["run.tokens"] = grid[0] * grid[1] * grid[2]
    steps = facts.get("run.num_inference_steps")
    if steps is not None and facts.get("model.scheduler", "") in ("", *ONE_TIMESTEP_A_STEP):
        derived["run.solver_steps"] = steps
    branches = _branches(facts.get("model.guidance_form"), facts.get("run.guidance_scale"))
    if branches is not None and "run.branches" not in facts:
        derived["run.branches"] = branches
    return facts.with_(derived, source="derived")


def _branches(form: str | None, scale: float | None) -> int | None:
    """Calls per step: one where guidance is embedded in the model; else two, unless the scale turns it off."""
    if form == "embedded":
        return 1
    return None if form is None or scale is None else 2 if scale > 1 else 1


def grid_problems(facts: Facts) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """What of the clip's size the model cannot make: (code, sentence with the nearest legal values, names)."""
    problems = []
    multiples = facts.get("model.pixel_multiple")
    for index, name in enumerate(("height", "width")):
        size = facts.get(f"run.{name}")
        if multiples and size is not None and size % multiples[index]:
            legal = _around(size, multiples[index], 0)
            sentence = f"{name} {size} is not a multiple of {multiples[index]}; nearest: {legal}"
            problems.append(("WF-G001", sentence, (name,)))
    frames, factor = facts.get("run.num_frames"), facts.get("vae.temporal_factor")
    if frames is not None and isinstance(factor, int) and (frames - 1) % factor:
        legal = _around(frames, factor, 1)
        sentence = (
            f"num_frames {frames} is impossible, it must be a multiple of {factor} plus 1; nearest: {legal}"
        )
        problems.append(("WF-G002", sentence, ("num_frames",)))
    return tuple(problems)


def _around(value: int, step: int, offset: int) -> str:
    low = (value - offset) // step * step + offset
    legal = [number for number in (low, low + step) if number > 0]
    return " or ".join(show(number) for number in legal)
