"""Planning a call: what cannot run is said before anything runs, with the nearest legal value."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import ClassifierFreeGuidance, UniPCMultistepScheduler

from wf_core.api import CallPlan
from wf_plugin_hunyuan import calls


def plan(pipe: Any, given: dict[str, Any]) -> CallPlan:
    """The plan of arguments bound as the host binds them; what the call requires may be missing here."""
    bound = inspect.signature(pipe.__call__).bind_partial(**given)
    bound.apply_defaults()
    return calls.plan_call(pipe, dict(bound.arguments))


@pytest.fixture(scope="module")
def pipes(tiny: SimpleNamespace) -> dict[str, Any]:
    return {kind: tiny.pipe(kind) for kind in ("t2v", "concat", "replace", "1.5", "1.5-image")}


@pytest.fixture
def problem(pipes: dict[str, Any], tiny: SimpleNamespace) -> Any:
    """The one problem of a call with some arguments changed; None takes an argument away."""

    def only(kind: str, **changes: Any) -> str:
        (found,) = plan(pipes[kind], tiny.arguments(kind, **changes)).problems
        return found

    return only


def test_facts_of_a_legal_call(pipes: dict[str, Any], tiny: SimpleNamespace) -> None:
    planned = plan(pipes["t2v"], tiny.arguments("t2v", guidance_scale=6.0))
    assert planned.problems == ()
    assert dict(planned.facts) == {
        "run.num_inference_steps": 3,
        "run.steps": 3,
        "run.guidance_scale": 6.0,
        "run.branches": 2,
        "run.batch": 1,
        "run.height": 32,
        "run.width": 48,
        "run.num_frames": 5,
        "run.latent_frames": 2,
        "run.grid": (2, 2, 3),
        "run.tokens": 12,
    }


def test_the_pipelines_defaults_count(pipes: dict[str, Any]) -> None:
    planned = plan(pipes["t2v"], {"prompt": ["one", "two"]})
    assert planned.problems == ()
    assert (planned.branches, planned.facts["run.batch"], planned.facts["run.steps"]) == (1, 2, 50)
    assert planned.facts["run.grid"] == (33, 45, 80)


def test_sizes_of_1_5_are_its_own_unless_both_are_given(
    pipes: dict[str, Any], problem: Any, tiny: SimpleNamespace
) -> None:
    planned = plan(pipes["1.5"], tiny.arguments("1.5", height=None, width=None))
    assert planned.problems == ()
    ours = planned.facts["run.height"], planned.facts["run.width"]
    assert ours == pipes["1.5"].video_processor.calculate_default_height_width(9, 16, 64)
    assert problem("1.5", height=None).startswith("height and width go together")
    assert problem("1.5", height=40).endswith(
        "multiple of 16 (VAE factor 16 x patch 1); the nearest legal values are 32 and 48."
    )
    assert plan(pipes["1.5-image"], tiny.arguments("1.5-image")).facts["run.num_frames"] == 5
    assert problem("1.5-image", image=torch.zeros(3, 8, 8)) == "image must be a PIL image, got Tensor."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"height": 40}, "height 40 is not a multiple of 16 (VAE factor 8 x patch 2); the nearest"),
        ({"num_frames": 6}, "num_frames 6 is not of the form 4k + 1; the nearest legal values are 5 and 9."),
        ({"num_inference_steps": 0}, "num_inference_steps must be a whole number of at least 1, got 0."),
        (
            {"latents": torch.zeros(1, 4, 3, 4, 6)},
            "latents have shape (1, 4, 3, 4, 6), but this call needs (1, 4, 2,",
        ),
        ({"pooled_prompt_embeds": None}, "prompt_embeds are given without pooled_prompt_embeds, which"),
    ],
)
def test_what_cannot_run_is_said(changes: dict[str, Any], words: str, problem: Any) -> None:
    assert problem("t2v", **changes).startswith(words)


@pytest.mark.parametrize(("kind", "channels"), [("t2v", 4), ("concat", 4), ("replace", 4), ("1.5", 4)])
def test_latents_of_the_right_shape_are_no_problem(
    kind: str, channels: int, pipes: dict[str, Any], tiny: SimpleNamespace
) -> None:
    factor = 16 if kind == "1.5" else 8
    latents = torch.zeros(1, channels, 2, 32 // factor, 48 // factor)
    assert plan(pipes[kind], tiny.arguments(kind, latents=latents)).problems == ()


def test_a_scheduler_without_sigmas_is_named(tiny: SimpleNamespace) -> None:
    class Old:
        def set_timesteps(self, num_inference_steps: int, device: Any = None) -> None: ...

    pipe = tiny.pipe("t2v")
    pipe.scheduler = Old()
    (found,) = plan(pipe, tiny.arguments("t2v")).problems
    assert found == "Old takes no sigmas, which this pipeline gives it; use another scheduler."


def test_a_scheduler_that_keeps_the_latents_dtype_keeps_the_timesteps(tiny: SimpleNamespace) -> None:
    unipc = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=7.0)
    pipe, given = tiny.pipe("t2v", torch.bfloat16, scheduler=unipc), tiny.arguments("t2v")
    opened = tiny.open_pipe(pipe)[1]
    planned = plan(pipe, given)
    copied, opened = tiny.open_pipe(pipe)
    with opened.run(planned.schedule.timesteps, planned.branches) as run:
        copied(**given)
    assert set(run.identity.sources) == {"context-name"}


def test_a_missing_vae_is_said_before_the_steps_are_spent(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("t2v", vae=None)
    (found,) = plan(pipe, tiny.arguments("t2v", output_type="pt")).problems
    assert "no VAE to decode with" in found
    assert plan(pipe, tiny.arguments("t2v")).problems == ()
    image = tiny.pipe("replace")
    image.vae = None
    assert any(
        "no VAE to encode its image with" in line for line in plan(image, tiny.arguments("replace")).problems
    )


def test_an_image_pipeline_with_a_text_checkpoint(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("replace", transformer=tiny.model("t2v"))
    (found,) = plan(pipe, tiny.arguments("replace")).problems
    assert found.startswith("this transformer takes no image")


def test_several_videos_of_a_prompt_fail_in_the_text_pipeline_of_1_5(
    pipes: dict[str, Any], problem: Any, tiny: SimpleNamespace
) -> None:
    given = tiny.arguments("1.5", num_videos_per_prompt=2)
    assert problem("1.5", num_videos_per_prompt=2).startswith(
        "num_videos_per_prompt is 2, and HunyuanVideo15Pipeline"
    )
    with pytest.raises(RuntimeError):
        pipes["1.5"](**given)


def test_several_clips_of_1_5_need_a_sliced_decode(tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe("1.5"), tiny.arguments("1.5", output_type="pt", num_inference_steps=1)
    given |= {k: v.repeat(2, *[1] * (v.ndim - 1)) for k, v in given.items() if isinstance(v, torch.Tensor)}
    (found,) = plan(pipe, given).problems
    assert found.startswith("this call decodes 2 clips, and the VAE of HunyuanVideo-1.5 fails")
    with pytest.raises(RuntimeError, match="shape"):
        pipe(**given)
    pipe.vae.enable_slicing()
    assert plan(pipe, given).problems == ()
    assert pipe(**given).frames.shape[0] == 2


def test_a_guider_left_at_its_last_step_is_told(tiny: SimpleNamespace) -> None:
    """diffusers asks the guider before it says which step it is at, so a second call may lack the negative prompt."""
    pipe = tiny.pipe("1.5", guider=ClassifierFreeGuidance(guidance_scale=3.0, stop=0.5))
    given = tiny.arguments("1.5")
    pipe(**given)
    assert plan(pipe, given).problems == (), "embeddings of the caller's own are used as they are"
    prompt = {"prompt": "x", "height": 32, "width": 48, "num_frames": 5, "num_inference_steps": 3}
    (found,) = plan(pipe, prompt).problems
    assert found.startswith("the guider stands at the last step of an earlier call")
    pipe.guider = pipe.guider.new()
    assert plan(pipe, prompt).problems == ()


def test_a_guider_without_guidance_makes_one_call(tiny: SimpleNamespace) -> None:
    for guider in (ClassifierFreeGuidance(guidance_scale=1.0), ClassifierFreeGuidance(enabled=False)):
        assert plan(tiny.pipe("1.5", guider=guider), tiny.arguments("1.5")).branches == 1


def test_without_a_transformer(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("t2v")
    pipe.transformer = None
    assert plan(pipe, tiny.arguments("t2v")).problems == ("the pipeline has no transformer; load one.",)
