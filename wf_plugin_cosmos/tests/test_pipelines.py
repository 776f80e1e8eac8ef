"""The stock pipelines on an installed copy: the plan of a call is what then happens, and the identity of each call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from wf_core.api import Calibrator, CallPlan, FeatureCache, Step, Technique

KINDS = ("p1", "p1-video", "p2-image", "p2", "p2.5", "transfer")
DTYPES = (torch.float32, torch.bfloat16)
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
    "linear",
    "modulation",
)
CASES = [(kind, dtype) for kind in KINDS for dtype in DTYPES]

pytestmark = [
    pytest.mark.usefixtures("torchvision"),
    # diffusers' schedulers hand tensors to numpy
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def pictures(count: int) -> list[Image.Image]:
    return [Image.effect_noise((48, 32), 64).convert("RGB") for _ in range(count)]


def run_and_watch(
    tiny: SimpleNamespace, pipe: Any, given: dict[str, Any], seams: tuple[str, ...] = ()
) -> tuple[torch.Tensor, list[tuple[Step, torch.Tensor]], CallPlan]:
    """The output, each call's step and latent input, and the plan that was made before."""
    calls = []

    def watch(inner: Any, site: Any, named: Any) -> Any:
        calls.append((opened.wiring.now(), named["hidden_states"]))
        return inner(named)

    copied, opened = tiny.open_pipe(pipe, *seams, claims={"denoiser": watch})
    plan = opened.family.plan_call(copied, tiny.bind(copied, given))
    with opened.run(plan.schedule.timesteps, plan.branches):
        out = tiny.output(copied, given)
    assert opened.wiring.now() is None
    return out, calls, plan


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_the_plan_is_what_happens_and_the_output_stock(
    kind: str, dtype: torch.dtype, tiny: SimpleNamespace
) -> None:
    pipe, given = tiny.pipe(kind, dtype), tiny.arguments(kind, dtype)
    stock = tiny.output(pipe, given)
    out, calls, plan = run_and_watch(tiny, pipe, given, INNER)
    assert torch.equal(out, stock)
    assert torch.equal(tiny.output(pipe, given), stock)
    assert plan.problems == ()
    steps = [step for step, _ in calls]
    expected = [(i, b, t) for i, t in enumerate(plan.schedule.timesteps) for b in ("cond", "uncond")]
    assert len(plan.schedule.timesteps) == 2
    assert [(s.index, s.branch, float(s.timestep.max())) for s in steps] == expected
    assert {(s.expert, s.total, s.source) for s in steps} == {("transformer", 2, "ordinal")}
    assert {s.grid for s in steps} == {plan.facts["run.grid"]}
    assert {latents.shape[2] for _, latents in calls} == {plan.facts["run.latent_frames"]}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("p2", {"image": None, "video": pictures(5), "num_frames": 9}),
        ("p2", {"image": None, "video": pictures(5), "sigma_conditioning": 0.5}),
        ("p2", {"sigma_conditioning": 0.5}),
        ("p2.5", {"video": pictures(5), "num_frames": 9}),
        ("p2.5", {"video": pictures(5), "conditional_frame_timestep": 0.2}),
        ("p2.5", {"video": pictures(5), "conditional_frame_timestep": -1.0}),
    ],
)
def test_frames_that_are_given_have_their_own_timestep(
    kind: str, more: dict[str, Any], tiny: SimpleNamespace
) -> None:
    pipe, given = tiny.pipe(kind), tiny.arguments(kind, **more)
    _, calls, plan = run_and_watch(tiny, pipe, given)
    assert [float(step.timestep.max()) for step, _ in calls[::2]] == list(plan.schedule.timesteps)
    assert {step.source for step, _ in calls} == {"ordinal"}


def test_guidance_off_leaves_one_branch(tiny: SimpleNamespace) -> None:
    _, calls, plan = run_and_watch(tiny, tiny.pipe("p1"), tiny.arguments("p1", guidance_scale=1.0))
    assert plan.branches == 1
    assert [step.branch for step, _ in calls] == ["cond"] * 2


def test_one_text_for_both_branches_is_ambiguous(tiny: SimpleNamespace) -> None:
    """The text tells the branches apart; where it cannot, what depends on them computes densely."""
    given = tiny.arguments("p1")
    given["negative_prompt_embeds"] = given["prompt_embeds"]
    _, calls, _ = run_and_watch(tiny, tiny.pipe("p1"), given)
    assert [step.ambiguous for step, _ in calls] == [False, True] * 2


def test_another_timestep_than_the_schedules_is_ambiguous(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("p1"))
    with opened.run((0.5, 0.1)) as run:
        opened.components["transformer"](**tiny.call("p1"))
    assert run.identity.summary() == "ambiguous"


def test_the_pair_of_text_and_image_is_known_by_its_text(tiny: SimpleNamespace) -> None:
    """The image tokens of Transfer2.5 are one tensor in both branches."""
    _, calls, _ = run_and_watch(tiny, tiny.pipe("transfer"), tiny.arguments("transfer"))
    assert [step.branch for step, _ in calls] == ["cond", "uncond"] * 2


LONG = {"controls": torch.zeros(1, 9, 3, 32, 48), "num_frames": 9}
"""Two chunks of 5 frames, which share one."""


def test_chunks_follow_one_another_in_the_plan(tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("transfer")
    given = tiny.arguments("transfer", **LONG)
    copied, opened = tiny.open_pipe(pipe)
    plan = opened.family.plan_call(copied, tiny.bind(copied, given))
    assert (plan.problems, len(plan.schedule.timesteps)) == ((), 4)
    with opened.run(plan.schedule.timesteps, plan.branches) as run:
        out = tiny.output(copied, given)
    assert torch.equal(out, tiny.output(pipe, given))
    assert run.identity.sources == {"ordinal": 8}


class Keeps(FeatureCache):
    """A cache at a seam where few stand: what a technique is decides, not where it stands."""

    seam = "attention"

    def new_state(self, run: Any, expert: str, branch: str) -> Any:
        raise AssertionError("nothing is run here")


class Measures(Calibrator):
    def observe(self, *_: Any) -> None:
        raise AssertionError("nothing is run here")

    def result(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("part", "effects", "refused"),
    [
        (Keeps(), frozenset(), True),
        (Measures(), None, True),
        (Technique(), frozenset(), False),
        (Technique(), frozenset({"holds-request-tensors"}), False),
        (Technique(), frozenset({"host-state"}), True),
        (Technique(), None, True),
    ],
    ids=["cache", "calibrator", "no effect", "tensors of the request", "state", "not declared"],
)
def test_what_is_kept_between_steps_would_reach_the_next_chunk(
    part: Technique, effects: frozenset[str] | None, refused: bool, tiny: SimpleNamespace
) -> None:
    pipe, opened = tiny.open_pipe(tiny.pipe("transfer"), "denoiser", "stack", "attention")
    opened.wiring.techniques = {"mine": part}
    opened.wiring.effects = {} if effects is None else {"mine": effects}

    def problems(**sizes: Any) -> tuple[str, ...]:
        given = tiny.bind(pipe, tiny.arguments("transfer", **sizes))
        found: tuple[str, ...] = opened.family.plan_call(pipe, given).problems
        return found

    assert problems() == ()
    found = problems(**LONG)
    assert bool(found) is refused
    assert all("in 2 chunks" in text and "what mine may keep" in text for text in found)
    assert all("at most 5 frames" in text for text in found)
