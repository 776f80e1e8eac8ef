"""Planning a call: what cannot run is said before anything runs, with the nearest legal value."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanVACEPipeline,
    WanVideoToVideoPipeline,
)

from wf_core.api import CallPlan
from wf_plugin_wan import calls
from wf_plugin_wan.geometry import count_references, frames_of

CALL = {"prompt": "a red 3", "height": 32, "width": 48, "num_frames": 5, "num_inference_steps": 4}


@pytest.fixture(scope="module")
def t2v(tiny: SimpleNamespace) -> Any:
    return tiny.pipe(WanPipeline, tiny.model("t2v"), tiny.vae())


def plan_call(pipe: Any, given: dict[str, Any]) -> CallPlan:
    """The plan of arguments bound as the host binds them; what the call requires may be missing here."""
    bound = inspect.signature(pipe.__call__).bind_partial(**given)
    bound.apply_defaults()
    return calls.plan_call(pipe, dict(bound.arguments))


def plan(pipe: Any, **given: Any) -> CallPlan:
    return plan_call(pipe, {**CALL, **given})


def only_problem(pipe: Any, **given: Any) -> str:
    (problem,) = plan(pipe, **given).problems
    return problem


def test_facts_of_a_legal_call(t2v: Any) -> None:
    planned = plan(t2v, guidance_scale=3.5)
    assert planned.problems == ()
    assert dict(planned.facts) == {
        "run.num_inference_steps": 4,
        "run.steps": 4,
        "run.guidance_scale": 3.5,
        "run.branches": 2,
        "run.batch": 1,
        "run.height": 32,
        "run.width": 48,
        "run.num_frames": 5,
        "run.latent_frames": 2,
        "run.reference_frames": 0,
        "run.grid": (2, 2, 3),
        "run.tokens": 12,
    }


def test_the_pipelines_defaults_count(t2v: Any) -> None:
    t2v_default = plan_call(t2v, {"prompt": ["one", "two"]})
    assert t2v_default.facts["run.batch"] == 2
    assert t2v_default.facts["run.num_inference_steps"] == 50
    assert (t2v_default.facts["run.height"], t2v_default.facts["run.width"]) == (480, 832)
    assert t2v_default.branches == 2


def test_the_pipelines_own_scheduler_is_not_touched(t2v: Any) -> None:
    before = dict(vars(t2v.scheduler))
    plan(t2v, num_inference_steps=7)
    assert {key: vars(t2v.scheduler)[key] is value for key, value in before.items()} == dict.fromkeys(
        before, True
    )


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [("height", 40, "32 and 48"), ("width", 50, "48 and 64"), ("height", 8, "16 and 32")],
)
def test_a_side_off_the_grid_names_the_nearest_sizes(name: str, value: int, nearest: str, t2v: Any) -> None:
    problem = only_problem(t2v, **{name: value})
    assert problem.startswith(f"{name} {value} is not a multiple of 16 (VAE factor 8 x patch 2)")
    assert problem.endswith(f"the nearest legal values are {nearest}.")


def test_the_unit_of_the_2_2_vae_is_32(tiny: SimpleNamespace) -> None:
    """48 passes diffusers' own check against 16 and would then be shrunk to 32 with a log line."""
    pipe = tiny.pipe(WanPipeline, tiny.model("ti2v"), tiny.vae(residual=True), expand_timesteps=True)
    problem = only_problem(pipe, height=48, width=64)
    assert "height 48 is not a multiple of 32 (VAE factor 16 x patch 2)" in problem
    assert "32 and 64" in problem
    assert plan(pipe, height=64, width=64).facts["run.grid"] == (2, 2, 2)


def test_the_pipelines_own_multiple_of_16_holds_beside_a_smaller_unit(tiny: SimpleNamespace) -> None:
    model = tiny.model("t2v", patch_size=(1, 1, 1))
    problem = only_problem(tiny.pipe(WanPipeline, model, tiny.vae()), height=40)
    assert "multiple of 16 (VAE factor 8 x patch 1, and the pipeline asks for multiples of 16)" in problem
    vace = tiny.pipe(WanVACEPipeline, tiny.model("vace", patch_size=(1, 1, 1)), tiny.vae())
    assert plan(vace, height=40).problems == ()


@pytest.mark.parametrize("value", [None, "32", 32.0, True, 0, -16])
def test_a_side_that_is_no_size_is_a_problem(value: Any, t2v: Any) -> None:
    assert only_problem(t2v, height=value).startswith(
        "height must be a whole number of pixels of at least 16"
    )


@pytest.mark.parametrize(
    ("value", "nearest"), [(18, "17 and 21"), (4, "1 and 5"), (0, "1 and 5"), (-6, "1 and 5")]
)
def test_an_impossible_frame_count_names_the_nearest(value: int, nearest: str, t2v: Any) -> None:
    problem = only_problem(t2v, num_frames=value)
    assert problem == f"num_frames {value} is not of the form 4k + 1; the nearest legal values are {nearest}."


def test_several_problems_are_all_named(t2v: Any) -> None:
    planned = plan(t2v, height=40, width=50, num_frames=6, num_inference_steps=0)
    assert len(planned.problems) == 4
    assert "run.grid" not in planned.facts


@pytest.mark.parametrize("shape", [(1, 16, 3, 4, 6), (2, 16, 2, 4, 6), (1, 16, 2, 4, 4), (16, 2, 4, 6)])
def test_latents_of_another_shape_are_a_problem(shape: tuple[int, ...], t2v: Any) -> None:
    problem = only_problem(t2v, latents=torch.zeros(shape))
    assert problem.startswith(f"latents have shape {shape}, but this call needs (1, 16, 2, 4, 6)")
    assert plan(t2v, latents=torch.zeros(1, 16, 2, 4, 6)).problems == ()


def test_image_to_video_latents_have_the_channels_of_the_vae(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanImageToVideoPipeline, tiny.model("i2v"), tiny.vae())
    assert plan(pipe, latents=torch.zeros(1, 16, 2, 4, 6)).problems == ()
    assert "needs (1, 16, 2, 4, 6)" in only_problem(pipe, latents=torch.zeros(1, 36, 2, 4, 6))


def test_a_grid_beyond_the_rope_table_is_a_problem(t2v: Any) -> None:
    problem = only_problem(t2v, width=16 * 33)
    assert (
        problem == "33 tokens of width exceed the rope table of transformer, which ends at 32; ask for less."
    )
    assert plan(t2v, width=16 * 32).problems == ()


# --- steps and experts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 2.5, "4", None, True])
def test_fewer_than_one_step_is_a_problem(value: Any, t2v: Any) -> None:
    assert only_problem(t2v, num_inference_steps=value).startswith(
        "num_inference_steps must be a whole number of at"
    )
    assert plan(t2v, num_inference_steps=1).schedule.experts == ("transformer",)


def test_a_step_that_needs_the_missing_second_expert(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanPipeline, tiny.model("t2v"), tiny.vae(), boundary_ratio=0.85)
    problem = only_problem(pipe)
    experts = plan(pipe).schedule.experts
    first = experts.index("transformer_2")
    assert first > 0
    assert (
        f"second expert missing: steps {first} to 3 of 4 (timesteps below 850) need transformer_2" in problem
    )
    assert "load it" in problem


def test_a_boundary_below_every_timestep_needs_no_second_expert(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanPipeline, tiny.model("t2v"), tiny.vae(), boundary_ratio=0.001)
    assert plan(pipe).problems == ()


def test_only_the_second_expert_is_legal_when_it_runs_alone(tiny: SimpleNamespace) -> None:
    model = tiny.model("t2v")
    alone = tiny.pipe(WanPipeline, None, tiny.vae(), transformer_2=model, boundary_ratio=1.0)
    assert plan(alone).problems == ()
    assert set(plan(alone).schedule.experts) == {"transformer_2"}
    both_needed = tiny.pipe(WanPipeline, None, tiny.vae(), transformer_2=model, boundary_ratio=0.85)
    assert "first expert missing" in only_problem(both_needed)
    no_boundary = tiny.pipe(WanPipeline, None, tiny.vae(), transformer_2=model)
    assert "steps 0 to 3 of 4 need transformer, which the pipeline does not have" in only_problem(no_boundary)


@pytest.mark.parametrize(
    ("steps", "shift", "boundary", "high"),
    [(40, 12.0, 0.875, 26), (40, 5.0, 0.9, 15), (40, 3.0, 0.875, 13), (4, 12.0, 0.875, 3)],
)
def test_the_published_splits_between_experts(
    steps: int, shift: float, boundary: float, high: int, tiny: SimpleNamespace
) -> None:
    model = tiny.model("t2v")
    pipe = tiny.pipe(WanPipeline, model, tiny.vae(), transformer_2=model, boundary_ratio=boundary)
    pipe.scheduler.register_to_config(flow_shift=shift)
    assert plan(pipe, num_inference_steps=steps).schedule.experts.count("transformer") == high


def test_video_to_video_leaves_out_steps_by_strength(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanVideoToVideoPipeline, tiny.model("t2v"), tiny.vae())
    given = {
        "prompt": "x",
        "height": 32,
        "width": 48,
        "video": torch.zeros(1, 5, 3, 32, 48),
        "num_inference_steps": 10,
    }
    full = plan_call(pipe, {**given, "strength": 1.0})
    part = plan_call(pipe, {**given, "strength": 0.3})
    assert part.schedule.timesteps == full.schedule.timesteps[-3:]
    assert part.facts["run.num_inference_steps"] == 3
    assert part.facts["run.grid"] == (2, 2, 3)
    (problem,) = plan_call(pipe, {**given, "strength": 0.05}).problems
    assert problem == "strength 0.05 leaves none of 10 steps; it must be at least 0.1."


def test_video_to_video_with_timesteps_of_the_callers_own(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanVideoToVideoPipeline, tiny.model("t2v"), tiny.vae())
    given = {
        "prompt": "x",
        "height": 32,
        "width": 48,
        "latents": torch.zeros(1, 16, 2, 4, 6),
        "strength": 0.5,
    }
    own = {**given, "timesteps": [900.0, 600.0, 300.0, 100.0]}
    (problem,) = plan_call(pipe, own).problems
    assert problem == "UniPCMultistepScheduler takes no custom timesteps; pass num_inference_steps alone."
    pipe.scheduler = FlowMatchEulerDiscreteScheduler()
    planned = plan_call(pipe, own)
    assert planned.problems == ()
    assert planned.schedule.timesteps == pytest.approx((300.0, 100.0))


# --- parts and precision --------------------------------------------------------------------------------------------


def test_rounded_rope_tables_are_a_problem(tiny: SimpleNamespace) -> None:
    model = tiny.model("t2v", torch.bfloat16)
    assert plan(tiny.pipe(WanPipeline, model, tiny.vae())).problems == ()
    problem = only_problem(tiny.pipe(WanPipeline, tiny.model("t2v").to(torch.bfloat16), tiny.vae()))
    assert (
        "the rope tables of transformer were rounded to bfloat16; load with dtype instead of .to" in problem
    )


def test_the_text_length_of_an_image_model_must_be_512(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanImageToVideoPipeline, tiny.model("i2v"), tiny.vae())
    short = {"prompt": None, "prompt_embeds": torch.zeros(1, 300, 32)}
    assert only_problem(pipe, **short).startswith("prompt_embeds have 300 text tokens")
    assert only_problem(pipe, max_sequence_length=256).startswith("max_sequence_length is 256")
    assert plan(pipe, prompt=None, prompt_embeds=torch.zeros(1, 512, 32)).problems == ()
    assert plan(tiny.pipe(WanPipeline, tiny.model("t2v"), tiny.vae()), **short).problems == ()


def test_a_missing_vae_is_said_before_the_steps_are_spent(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanPipeline, tiny.model("t2v"), None)
    assert "no VAE to decode with" in only_problem(pipe)
    assert plan(pipe, output_type="latent").problems == ()
    image = tiny.pipe(WanImageToVideoPipeline, tiny.model("i2v"), None)
    assert "no VAE to encode its input with" in only_problem(image, output_type="latent")


# --- counting what the caller passes --------------------------------------------------------------------------------


def test_frames_of_every_form_of_video() -> None:
    images = [object()] * 5
    assert frames_of(images) == 5
    assert frames_of([images, images]) == 5
    assert frames_of(np.zeros((5, 8, 8, 3))) == 5
    assert frames_of(torch.zeros(1, 5, 3, 8, 8)) == 5
    assert frames_of([np.zeros((5, 8, 8, 3))]) == 5
    assert frames_of([]) is None


def test_reference_images_of_every_form() -> None:
    image = object()
    assert [
        count_references(form) for form in (None, image, [image], [image, image], [[image, image, image]])
    ] == [
        0,
        1,
        1,
        2,
        3,
    ]


def test_vace_is_checked_against_the_patch_alone(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(WanVACEPipeline, tiny.model("vace"), tiny.vae())
    assert "multiple of 16" in only_problem(pipe, height=24)
    assert plan(pipe, reference_images=[object()]).facts["run.latent_frames"] == 3
