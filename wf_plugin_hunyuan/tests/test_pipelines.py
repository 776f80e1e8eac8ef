"""The stock pipelines on an installed copy: the plan of a call is what then happens, and the identity of each call."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import ClassifierFreeGuidance

from wf_core.api import CallPlan, Step

KINDS = ("t2v", "concat", "replace", "1.5", "1.5-image")
INNER = ("stack", "block", "linear", "modulation")
SOURCES = {"concat": "ordinal", "replace": "ordinal"}


def call(pipe: Any, arguments: dict[str, Any]) -> torch.Tensor:
    frames: torch.Tensor = pipe(**arguments, generator=torch.Generator().manual_seed(0)).frames
    return frames


def planned(pipe: Any, opened: Any, given: dict[str, Any]) -> CallPlan:
    bound = inspect.signature(pipe.__call__).bind(**given)
    bound.apply_defaults()
    plan: CallPlan = opened.family.plan_call(pipe, dict(bound.arguments))
    return plan


def run_and_watch(
    tiny: SimpleNamespace, pipe: Any, given: dict[str, Any], *seams: str
) -> tuple[torch.Tensor, list[tuple[Step, torch.Tensor]], CallPlan]:
    """The output, each call's step and latent input, and the plan that was made before."""
    calls = []

    def watch(inner: Any, site: Any, named: Any) -> Any:
        calls.append((opened.wiring.now(), named["hidden_states"]))
        return inner(named)

    copied, opened = tiny.open_pipe(pipe, *seams, claims={"denoiser": watch})
    plan = planned(copied, opened, given)
    with opened.run(plan.schedule.timesteps, plan.branches):
        out = call(copied, given)
    return out, calls, plan


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_what_happens(kind: str, tiny: SimpleNamespace) -> None:
    """In bfloat16, where the pipelines round timesteps, and a plan with others would leave every step ambiguous."""
    pipe, given = tiny.pipe(kind, torch.bfloat16), tiny.arguments(kind)
    out, calls, plan = run_and_watch(tiny, pipe, given)
    assert plan.problems == ()
    steps = [step for step, _ in calls]
    expected = [(i, b, t) for i, t in enumerate(plan.schedule.timesteps) for b in ("cond", "uncond")]
    assert [(s.index, s.branch, float(s.timestep.max())) for s in steps] == expected
    assert {s.total for s in steps} == {plan.facts["run.num_inference_steps"]} == {3}
    assert {s.grid for s in steps} == {plan.facts["run.grid"]}
    assert {s.source for s in steps} == {SOURCES.get(kind, "context-name")}
    assert {(x.shape[0], x.shape[2]) for _, x in calls} == {(1, plan.facts["run.latent_frames"])}
    assert plan.facts["run.batch"] == 1
    size = [plan.facts[f"run.{side}"] // pipe.vae_scale_factor_spatial for side in ("height", "width")]
    assert list(out.shape[3:]) == size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_pipelines_output_is_bit_identical(kind: str, dtype: torch.dtype, tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe(kind, dtype), tiny.arguments(kind, num_inference_steps=2)
    stock = call(pipe, given)
    assert torch.isfinite(stock).all()
    for seams in ((), INNER):
        assert torch.equal(run_and_watch(tiny, pipe, given, *seams)[0], stock), seams


def test_without_true_guidance_there_is_one_call_per_step(tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe("t2v"), tiny.arguments("t2v", true_cfg_scale=1.0)
    _, calls, plan = run_and_watch(tiny, pipe, given)
    assert plan.branches == plan.facts["run.branches"] == 1
    assert [step.branch for step, _ in calls] == ["cond"] * 3
    text_only = {k: v for k, v in tiny.arguments("t2v").items() if not k.startswith("negative_pooled")}
    assert run_and_watch(tiny, pipe, text_only)[2].branches == 1


def test_a_guider_that_stops_early_leaves_the_later_steps_one_branch(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("1.5", guider=ClassifierFreeGuidance(guidance_scale=3.0, start=0.4))
    _, calls, plan = run_and_watch(tiny, pipe, tiny.arguments("1.5"))
    assert plan.branches == 2
    assert [(s.index, s.branch) for s, _ in calls] == [
        (0, "cond"),
        (1, "cond"),
        (1, "uncond"),
        (2, "cond"),
        (2, "uncond"),
    ]


def test_sigmas_of_the_callers_own(tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe("t2v"), tiny.arguments("t2v", sigmas=[1.0, 0.5])
    _, calls, plan = run_and_watch(tiny, pipe, given)
    assert len(plan.schedule.timesteps) == plan.facts["run.num_inference_steps"] == 2
    assert [s.index for s, _ in calls] == [0, 0, 1, 1]
    assert not any(s.ambiguous for s, _ in calls)


def test_the_guider_of_the_base_is_not_touched(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("1.5")
    run_and_watch(tiny, pipe, tiny.arguments("1.5"))
    assert pipe.guider._step is None
