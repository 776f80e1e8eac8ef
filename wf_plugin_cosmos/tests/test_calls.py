"""Planning a call: what cannot run is said before anything runs, with the nearest legal value."""

from __future__ import annotations

import inspect
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import CosmosTextToWorldPipeline
from diffusers.models.transformers import transformer_cosmos
from PIL import Image

from wf_core.api import CallPlan
from wf_plugin_cosmos import calls

CALL = {"prompt": "a red 3", "height": 32, "width": 48, "num_inference_steps": 4}

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def plan(pipe: Any, **given: Any) -> CallPlan:
    """The plan of arguments bound as the host binds them; what the call requires may be missing here."""
    bound = inspect.signature(pipe.__call__).bind_partial(**{**CALL, **given})
    bound.apply_defaults()
    return calls.plan_call(pipe, dict(bound.arguments))


def only_problem(pipe: Any, **given: Any) -> str:
    (problem,) = plan(pipe, **given).problems
    return problem


@pytest.fixture(scope="module")
def p1(tiny: SimpleNamespace) -> Any:
    return tiny.pipe("p1")


@pytest.fixture(scope="module")
def p2(tiny: SimpleNamespace) -> Any:
    return tiny.pipe("p2")


@pytest.fixture(scope="module")
def transfer(tiny: SimpleNamespace) -> Any:
    return tiny.pipe("transfer")


def test_facts_of_a_legal_call(p1: Any) -> None:
    planned = plan(p1, num_frames=9, fps=24, guidance_scale=3.5)
    assert planned.problems == ()
    assert dict(planned.facts) == {
        "run.num_inference_steps": 4,
        "run.steps": 4,
        "run.guidance_scale": 3.5,
        "run.branches": 2,
        "run.batch": 1,
        "run.fps": 24,
        "run.height": 32,
        "run.width": 48,
        "run.num_frames": 9,
        "run.latent_frames": 2,
        "run.grid": (2, 2, 3),
        "run.tokens": 12,
    }


def test_an_image_has_one_frame_and_no_rate(tiny: SimpleNamespace) -> None:
    facts = plan(tiny.pipe("p2-image"), prompt=["one", "two"], num_images_per_prompt=3).facts
    assert (facts["run.num_frames"], facts["run.grid"], facts["run.batch"]) == (1, (1, 2, 3), 6)
    assert "run.fps" not in facts


def test_frames_follow_the_vae(p1: Any, p2: Any) -> None:
    assert plan(p2, num_frames=13).facts["run.latent_frames"] == 4
    assert "nearest legal values are 9 and 17" in only_problem(p1, num_frames=13)
    assert "nearest legal values are 9 and 13" in only_problem(p2, num_frames=12)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"height": 40}, "height 40 is not a multiple of 16"),
        ({"width": None}, "width must be a whole number of pixels"),
        ({"num_inference_steps": 0}, "num_inference_steps must be a whole number"),
        ({"height": 288}, "18 tokens of height exceed the model's positions, which end at 8"),
        ({"latents": torch.zeros(1, 17, 3, 4, 6)}, r"needs \(1, 16, 3, 4, 6\)"),
    ],
)
def test_sizes_that_are_not_possible(given: dict[str, Any], words: str, p2: Any) -> None:
    import re

    assert re.search(words, only_problem(p2, **{"num_frames": 9, **given}))


def test_learned_positions_end_at_each_side_of_their_own(p1: Any) -> None:
    assert plan(p1, num_frames=57).problems == ()
    assert "9 tokens of frames exceed the model's positions, which end at 8" in only_problem(
        p1, num_frames=65
    )


def test_a_pipeline_without_its_safety_checker_is_refused(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("p1")
    pipe.safety_checker = None
    assert "install cosmos_guardrail" in only_problem(pipe, num_frames=9)


def test_a_missing_vae_is_missed_before_the_steps(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("p1", vae=None)
    assert 'pass output_type="latent"' in only_problem(pipe, num_frames=9)
    assert plan(pipe, num_frames=9, output_type="latent").problems == ()


def test_torchvision_is_asked_for_where_it_is_needed(
    tiny: SimpleNamespace, transfer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(transformer_cosmos, "transforms", raising=False)
    padded = tiny.pipe("p1", transformer=tiny.model("p1", concat_padding_mask=True))
    assert "with which the model resizes its padding mask" in only_problem(padded, num_frames=9)
    controls = [Image.new("RGB", (48, 32))] * 9
    assert "the control network resizes" in only_problem(transfer, controls=controls, num_frames_per_chunk=9)
    predict = tiny.pipe("p2.5")
    assert "reads an image" in only_problem(predict, num_frames=9, image=controls[0])
    assert plan(predict, num_frames=9).problems == ()


@pytest.mark.usefixtures("torchvision")
def test_the_width_and_length_of_a_transfer_follow_its_controls(transfer: Any) -> None:
    controls = [Image.new("RGB", (48, 32))] * 7
    facts = plan(transfer, controls=controls, height=48, width=None, num_frames_per_chunk=9).facts
    assert (facts["run.width"], facts["run.num_frames"], facts["run.latent_frames"]) == (96, 7, 3)
    tensor = torch.zeros(1, 7, 3, 32, 48)
    again = plan(transfer, controls=tensor, height=48, width=None, num_frames=5, num_frames_per_chunk=9)
    assert (again.facts["run.width"], again.facts["run.num_frames"]) == (96, 5)


def test_a_pipeline_of_the_users_own_has_no_known_schedule(tiny: SimpleNamespace, p1: Any) -> None:
    class Own(CosmosTextToWorldPipeline):
        """Known by what it inherits from."""

    own = tiny.pipe("p1")
    own.__class__ = Own
    assert plan(own, num_frames=9).schedule == plan(p1, num_frames=9).schedule
    other = SimpleNamespace(**{name: getattr(p1, name) for name in ("scheduler", "transformer", "vae")})
    other.vae_scale_factor_spatial = other.vae_scale_factor_temporal = 8
    planned = calls.plan_call(other, {**CALL, "num_frames": 9})
    assert (planned.schedule.timesteps, planned.problems) == ((), ())


def test_the_pipelines_own_scheduler_is_not_touched(p2: Any) -> None:
    before = dict(vars(p2.scheduler))
    plan(p2, num_inference_steps=7)
    assert {key: vars(p2.scheduler)[key] is value for key, value in before.items()} == dict.fromkeys(
        before, True
    )


# --- one dtype --------------------------------------------------------------------------------------------------------

F32, BF16 = torch.float32, torch.bfloat16


def text(dtype: torch.dtype, prefix: str = "") -> dict[str, torch.Tensor]:
    return {f"{prefix}prompt_embeds": torch.zeros(1, 8, 20, dtype=dtype)}


def short(pipe: Any, **given: Any) -> tuple[str, ...]:
    return plan(pipe, **{"prompt": None, **given}).problems


@pytest.mark.parametrize("kind", ["p1", "p1-video", "p2-image", "p2", "p2.5"])
def test_text_in_another_dtype_than_the_transformer_is_refused(kind: str, tiny: SimpleNamespace) -> None:
    """The stock pipelines do not cast it, and fail at the first product."""
    pipe, sizes = tiny.pipe(kind, BF16), {} if kind == "p2-image" else {"num_frames": 9}
    assert short(pipe, **{**text(BF16), **text(BF16, "negative_"), **sizes}) == ()
    (problem,) = short(pipe, **{**text(F32), **text(BF16, "negative_"), **sizes})
    assert problem.startswith("the prompt is embedded in float32, and the transformer is in bfloat16")
    (problem,) = short(pipe, **{**text(BF16), **text(F32, "negative_"), **sizes})
    assert problem.startswith("the negative_prompt is embedded in float32")
    assert short(pipe, **{**text(BF16), **text(F32, "negative_"), **sizes}, guidance_scale=1.0) == ()
    with torch.autocast("cpu", BF16):
        assert short(pipe, **text(F32), **sizes) == ()


def test_text_that_an_encoder_will_embed_has_its_dtype(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("p2", BF16)
    pipe.text_encoder = torch.nn.Linear(1, 1)
    assert short(pipe, prompt="a red 3", num_frames=9) == (), "an encoder that has no dtype to tell is let be"
    pipe.text_encoder = SimpleNamespace(dtype=F32)
    assert [problem.partition(" is ")[0] for problem in short(pipe, prompt="a red 3", num_frames=9)] == [
        "the prompt",
        "the negative_prompt",
    ]
    assert short(pipe, **text(BF16), **text(BF16, "negative_"), num_frames=9) == ()


def test_weights_in_a_form_of_their_own_take_any_text(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("p2", BF16, transformer=tiny.copy(tiny.model("p2", BF16)))
    stored = torch.nn.Linear(1, 1, dtype=BF16)
    stored.weight = torch.nn.Parameter(stored.weight.to(torch.float8_e4m3fn), requires_grad=False)
    for layer in (torch.nn.Identity(), stored):
        pipe.transformer.transformer_blocks[0].attn2.to_k = layer
        assert short(pipe, **text(F32), num_frames=9) == ()


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize("dtypes", list(itertools.product((F32, BF16), repeat=3)), ids=str)
def test_transfer_computes_in_one_dtype_or_is_refused(
    dtypes: tuple[torch.dtype, ...], tiny: SimpleNamespace
) -> None:
    """What is refused is what fails in the stock pipeline."""
    transformer, control, vae = dtypes
    parts = {"controlnet": tiny.control(control), "vae": tiny.vae("transfer", vae)}
    pipe = tiny.pipe("transfer", transformer, **parts)
    given = tiny.arguments("transfer", transformer, num_inference_steps=1, guidance_scale=1.0)
    problems = calls.plan_call(pipe, tiny.bind(pipe, given)).problems
    if not problems:
        tiny.output(pipe, given)
        return
    with pytest.raises(RuntimeError, match="dtype"):
        tiny.output(pipe, given)
    (problem,) = problems
    whose = "the control network" if control is not transformer else "the VAE encodes the controls"
    assert problem.startswith(whose) and "leave out torch_dtype" in problem
