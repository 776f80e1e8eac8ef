"""The stock pipelines on an installed copy: the plan of a call is what then happens, and the identity of each call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import (
    WanImageToVideoPipeline,
    WanPipeline,
    WanVACEPipeline,
    WanVideoToVideoPipeline,
)
from PIL import Image

from wf_core.api import CallPlan, Step

INNER = (
    "stack",
    "block",
    "branch",
    "attention",
    "norm_modulate",
    "gated_residual",
    "qkv",
    "feed_forward",
    "rope",
    "time_embedding",
    "linear",
    "modulation",
)


class ImagePipeline(WanImageToVideoPipeline):
    """Image-to-video 2.1 without an image encoder: made-up image tokens."""

    def encode_image(self, image: Any, device: Any = None) -> torch.Tensor:
        return torch.randn(1, 257, 4, generator=torch.Generator().manual_seed(1))


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def picture(width: int = 48, height: int = 32) -> Image.Image:
    return Image.effect_noise((width, height), 64).convert("RGB")


def arguments(text_tokens: int = 20, **more: Any) -> dict[str, Any]:
    return {
        "prompt_embeds": noise(1, text_tokens, 32),
        "negative_prompt_embeds": noise(1, text_tokens, 32) / 2,
        "height": 32,
        "width": 48,
        "num_frames": 5,
        "num_inference_steps": 4,
        "guidance_scale": 3.0,
        "output_type": "latent",
        **more,
    }


def make_t2v(tiny: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
    return tiny.pipe(WanPipeline, tiny.model("t2v"), tiny.vae()), arguments()


def make_a14b(tiny: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
    second = tiny.copy(tiny.model("t2v"))
    second.scale_shift_table = torch.nn.Parameter(second.scale_shift_table * 2, requires_grad=False)
    pipe = tiny.pipe(WanPipeline, tiny.model("t2v"), None, transformer_2=second, boundary_ratio=0.85)
    return pipe, arguments(guidance_scale_2=2.0)


def make_second_only(tiny: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
    pipe = tiny.pipe(WanPipeline, None, None, transformer_2=tiny.model("t2v"), boundary_ratio=1.0)
    return pipe, arguments(guidance_scale=1.0)


def make_ti2v(tiny: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
    pipe = tiny.pipe(WanPipeline, tiny.model("ti2v"), tiny.vae(residual=True), expand_timesteps=True)
    return pipe, arguments(height=64, width=96)


def make_i2v(tiny: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
    return tiny.pipe(ImagePipeline, tiny.model("i2v"), tiny.vae()), arguments(512, image=picture())


def make_ti2v_image(tiny: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
    pipe = tiny.pipe(
        WanImageToVideoPipeline, tiny.model("ti2v"), tiny.vae(residual=True), expand_timesteps=True
    )
    return pipe, arguments(height=64, width=96, image=picture(96, 64))


def make_v2v(tiny: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
    call = arguments(video=[picture() for _ in range(5)], strength=0.8)
    del call["num_frames"]
    return tiny.pipe(WanVideoToVideoPipeline, tiny.model("t2v"), tiny.vae()), call


def make_vace(tiny: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
    pipe = tiny.pipe(WanVACEPipeline, tiny.model("vace"), tiny.vae())
    return pipe, arguments(reference_images=[picture(), picture()])


MAKERS: dict[str, Callable[[SimpleNamespace], tuple[Any, dict[str, Any]]]] = {
    "t2v": make_t2v,
    "a14b": make_a14b,
    "second-only": make_second_only,
    "ti2v": make_ti2v,
    "i2v": make_i2v,
    "ti2v-image": make_ti2v_image,
    "v2v": make_v2v,
    "vace": make_vace,
}
SOURCES = {"i2v": "context-name", "ti2v-image": "context-name", "vace": "context-name", "v2v": "ordinal"}


def call(pipe: Any, arguments: dict[str, Any]) -> torch.Tensor:
    frames: torch.Tensor = pipe(**arguments, generator=torch.Generator().manual_seed(0)).frames
    return frames


def run_and_watch(
    tiny: SimpleNamespace, pipe: Any, given: dict[str, Any], seams: tuple[str, ...] = ()
) -> tuple[torch.Tensor, list[tuple[Step, torch.Tensor]], CallPlan]:
    """The output, each call's step and latent input, and the plan that was made before."""
    calls = []

    def watch(inner: Any, site: Any, named: Any) -> Any:
        calls.append((opened.wiring.now(), named["hidden_states"]))
        assert opened.wiring.now().expert == site.root
        return inner(named)

    copied, opened = tiny.open_pipe(pipe, *seams, claims={"denoiser": watch})
    plan = opened.family.plan_call(copied, given)
    with opened.run(plan.schedule.timesteps, plan.branches):
        out = call(copied, given)
    assert opened.wiring.now() is None
    return out, calls, plan


@pytest.mark.parametrize("name", MAKERS)
def test_the_plan_is_what_happens(name: str, tiny: SimpleNamespace) -> None:
    pipe, given = MAKERS[name](tiny)
    out, calls, plan = run_and_watch(tiny, pipe, given)
    assert plan.problems == ()
    steps = [step for step, _ in calls]
    branches = ("cond", "uncond")[: plan.branches]
    expected = [
        (i, branch, expert, t)
        for i, (t, expert) in enumerate(zip(plan.schedule.timesteps, plan.schedule.experts, strict=True))
        for branch in branches
    ]
    assert [(s.index, s.branch, s.expert, float(s.timestep.max())) for s in steps] == expected
    assert (
        {s.total for s in steps} == {len(plan.schedule.timesteps)} == {plan.facts["run.num_inference_steps"]}
    )
    assert {s.grid for s in steps} == {plan.facts["run.grid"]}
    assert {s.source for s in steps} == {SOURCES.get(name, "context")}
    latents = {tuple(latents.shape) for _, latents in calls}
    assert {(shape[0], shape[2]) for shape in latents} == {
        (plan.facts["run.batch"], plan.facts["run.latent_frames"])
    }
    assert out.shape[2] == plan.facts["run.latent_frames"]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("seams", [(), INNER], ids=["outer", "all"])
def test_the_pipelines_output_is_bit_identical(
    seams: tuple[str, ...], name: str, tiny: SimpleNamespace
) -> None:
    pipe, given = MAKERS[name](tiny)
    stock = call(pipe, given)
    out, _, _ = run_and_watch(tiny, pipe, given, seams)
    assert torch.equal(out, stock)
    assert torch.equal(call(pipe, given), stock)


def test_both_experts_take_part_as_planned(tiny: SimpleNamespace) -> None:
    pipe, given = make_a14b(tiny)
    experts = run_and_watch(tiny, pipe, given)[2].schedule.experts
    assert experts == tuple(sorted(experts))
    assert set(experts) == {"transformer", "transformer_2"}


def test_guidance_off_leaves_one_branch_whatever_the_second_scale(tiny: SimpleNamespace) -> None:
    pipe, given = make_a14b(tiny)
    _, calls, plan = run_and_watch(tiny, pipe, {**given, "guidance_scale": 1.0, "guidance_scale_2": 3.0})
    assert plan.branches == 1
    assert [step.branch for step, _ in calls] == ["cond"] * 4


def test_tokens_count_vace_reference_frames(tiny: SimpleNamespace) -> None:
    _, _, plan = run_and_watch(tiny, *make_vace(tiny))
    assert plan.facts["run.reference_frames"] == 2
    assert plan.facts["run.grid"] == (4, 2, 3)
    assert plan.facts["run.tokens"] == 24


def test_the_context_of_an_earlier_call_does_not_linger(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("t2v"))
    root = opened.components["transformer"]
    with opened.run((900.0,), 1) as run:
        with pytest.raises(KeyError), root.cache_context("cond", step_index=0, num_inference_steps=1):
            raise KeyError("the step failed")
        root(**{**tiny.call("t2v"), "timestep": torch.tensor([900])})
    assert run.identity.sources == {"ordinal": 1}


def test_the_stock_cache_context_is_entered_too(tiny: SimpleNamespace) -> None:
    """diffusers' own caches, put on the copy by a plugin, still get their context."""
    from diffusers import FirstBlockCacheConfig

    opened = tiny.open(tiny.model("t2v"))
    root = opened.components["transformer"]
    root.enable_cache(FirstBlockCacheConfig(threshold=1e9))
    outputs = []
    with opened.run((900.0, 800.0), 1):
        for t in (900, 800):
            with root.cache_context("cond"):
                outputs.append(root(**{**tiny.call("t2v"), "timestep": torch.tensor([t])})[0])
    root.disable_cache()
    with opened.run((800.0,), 1):
        dense = root(**{**tiny.call("t2v"), "timestep": torch.tensor([800])})[0]
    assert not torch.equal(outputs[1], dense)
