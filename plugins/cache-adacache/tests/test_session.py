"""Real sessions: tiny random Wan models of every recipe, and the trained tiny-wan."""

from __future__ import annotations

import math

import pytest
import torch

from support import models
from support.counting import BlockCalls
from wf_core import Host
from wf_core.testing import fingerprint, load_pipeline

EVERY_OTHER = {"adacache": {"thresholds": [1.0], "rates": [2]}}
"""Computes steps 0, 1, 3, 5 ... and the last."""
NEVER = {"adacache": {"threshold": 0.0}}
RECIPES = {"t2v": models.t2v, "ti2v": models.ti2v, "i2v": models.i2v, "vace": models.vace}


@pytest.fixture(scope="module")
def host():
    return Host.discover()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def tiny(host):
    return models.quiet(load_pipeline(host.model_directory("tiny-wan")))


def small(seed=0, steps=12, **changes):
    """A call of tiny-wan with two latent frames, latents out."""
    arguments = {
        "prompt": "a red 3 moving left",
        "height": 64,
        "width": 64,
        "num_frames": 5,
        "num_inference_steps": steps,
        "guidance_scale": 3.0,
        "generator": torch.Generator().manual_seed(seed),
        "output_type": "latent",
    }
    return {**arguments, **changes}


def account(session):
    return session.report["steps"]["caches"]["adacache"]["branches"]


def result(output):
    frames = output.frames
    return frames if isinstance(frames, torch.Tensor) else torch.as_tensor(frames)


def psnr(ours, theirs):
    error = float((ours - theirs).double().square().mean())
    return 10 * math.log10(float(theirs.max() - theirs.min()) ** 2 / error) if error else math.inf


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_skips_and_counts(host, name):
    pipe, arguments = RECIPES[name]()
    arguments["num_inference_steps"] = 5
    stock = result(pipe(**models.fresh(arguments)))
    before = fingerprint(pipe, contents=True)
    with host.session(pipe, EVERY_OTHER) as session:
        with BlockCalls(session.pipe.transformer) as seen:
            ours = result(session.pipe(**models.fresh(arguments)))
        rows = account(session)
        (claim,) = session.report["effective"].values()
        assert claim["state"] == "effective"
        assert session.report["fallbacks"] == []
    assert {key: row["computed"] for key, row in rows.items()} == {
        "transformer/cond": [0, 1, 3, 4],
        "transformer/uncond": [0, 1, 3, 4],
    }
    assert seen.count == 2 * 4 * len(pipe.transformer.blocks)
    assert ours.isfinite().all()
    assert not torch.equal(ours, stock)
    assert before.diff(fingerprint(pipe, contents=True)) == []


@pytest.mark.parametrize("name", RECIPES)
def test_a_threshold_of_zero_is_bit_identical_and_inert(host, name):
    pipe, arguments = RECIPES[name]()
    stock = result(pipe(**models.fresh(arguments)))
    with host.session(pipe, {"adacache": {**EVERY_OTHER["adacache"], "threshold": 0.0}}) as session:
        assert torch.equal(result(session.pipe(**models.fresh(arguments))), stock)
        (claim,) = session.report["effective"].values()
    assert claim["state"] == "inert"
    assert claim["evidence"].get("skipped", 0) == 0


@pytest.mark.parametrize("name", RECIPES)
def test_a_forced_hit_on_the_same_input_is_the_computed_output(host, name):
    """The residual is measured between the two points where it is added, VACE's hints inside."""
    pipe, arguments = RECIPES[name]()
    captured = []
    hook = pipe.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: captured.append((args, kwargs)), with_kwargs=True
    )
    pipe(**models.fresh({**arguments, "guidance_scale": 1.0}))
    hook.remove()
    (args, kwargs), *_ = captured
    outputs = []
    with host.session(pipe.transformer, EVERY_OTHER) as session:
        with session.run(num_inference_steps=6, branches=1):
            for _ in range(3):
                with session.model.cache_context("cond"):
                    outputs.append(session.model(*args, **{**kwargs, "return_dict": False})[0])
        assert account(session)["transformer/cond"]["skipped"] == [2]
    assert torch.equal(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[2], outputs[1], rtol=1e-4, atol=1e-4)


def test_two_experts_start_anew(host):
    pipe = models.p2()
    with host.session(pipe, EVERY_OTHER) as session:
        session.pipe(**models.call(num_inference_steps=16))
        rows = {key: row["computed"] for key, row in account(session).items()}
    assert rows["transformer/cond"] == rows["transformer/uncond"]
    high = len(account_steps(session, "transformer/cond"))
    assert rows["transformer/cond"][:2] == [0, 1]
    assert rows["transformer_2/cond"][:3] == [high, high + 1, high + 3]
    assert rows["transformer_2/cond"][-1] == 15


def account_steps(session, key):
    row = account(session)[key]
    return [*row["computed"], *row["skipped"]]


def test_without_guidance_there_is_one_branch(host):
    pipe, arguments = models.t2v()
    with host.session(pipe, EVERY_OTHER) as session:
        session.pipe(**{**arguments, "guidance_scale": 1.0, "num_inference_steps": 6})
        assert {key: row["computed"] for key, row in account(session).items()} == {
            "transformer/cond": [0, 1, 3, 5]
        }
        assert session.report["effective"]["adacache"]["evidence"]["host_syncs"] == 2


def test_two_requests_back_to_back_are_those_of_fresh_sessions(host):
    pipe, _ = models.t2v()
    calls = [
        models.call(1, num_inference_steps=7),
        models.call(2, num_inference_steps=5, height=48),
        models.call(1, num_inference_steps=7),
    ]
    fresh = []
    for arguments in calls:
        with host.session(pipe, EVERY_OTHER) as session:
            fresh.append(result(session.pipe(**models.fresh(arguments))))
    with host.session(pipe, EVERY_OTHER) as session:
        for arguments, wanted in zip(calls, fresh, strict=True):
            assert torch.equal(result(session.pipe(**models.fresh(arguments))), wanted)


def test_a_run_that_fails_in_the_middle_leaves_nothing(host):
    pipe, _ = models.t2v()
    arguments = models.call(3, num_inference_steps=7)

    def stop(pipe, index, timestep, kwargs):
        if index == 3:
            raise RuntimeError("stopped by the test")
        return kwargs

    with host.session(pipe, EVERY_OTHER) as session:
        wanted = result(session.pipe(**models.fresh(arguments)))
        with pytest.raises(RuntimeError, match="stopped by the test"):
            session.pipe(**{**models.fresh(arguments), "callback_on_step_end": stop})
        assert torch.equal(result(session.pipe(**models.fresh(arguments))), wanted)
        assert account(session)["transformer/cond"]["computed"] == [0, 1, 3, 5, 6]


def test_bfloat16_runs(host):
    pipe, arguments = models.t2v(torch.bfloat16)
    with host.session(pipe, EVERY_OTHER) as session:
        assert result(session.pipe(**{**arguments, "num_inference_steps": 5})).isfinite().all()
        assert account(session)["transformer/cond"]["skipped"] == [2]


# --- tiny-wan -------------------------------------------------------------------------------------------------------


def test_tiny_wan_skips_and_stays_near_the_plain_clip(host, tiny):
    stock = tiny(**small(steps=30)).frames
    before = fingerprint(tiny, contents=True)
    with host.session(tiny, {"adacache": True}) as session:
        near = session.pipe(**small(steps=30)).frames
        evidence = session.report["effective"]["adacache"]["evidence"]
    assert evidence["skipped"] >= 20
    assert evidence["host_syncs"] < evidence["computed"]
    found = psnr(near, stock)
    assert 20 < found < math.inf, found
    assert before.diff(fingerprint(tiny, contents=True)) == []
