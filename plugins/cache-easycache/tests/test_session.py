"""EasyCache in real sessions: every Wan recipe with random weights, and the trained tiny-wan."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from support import models
from support.counting import BlockCalls
from wf_core import Host
from wf_core.testing import load_pipeline

SKIPPING = {"feature_cache": {"algorithm": "easycache", "threshold": 10.0, "first": 1, "last": 1}}
NEVER = {"feature_cache": {"algorithm": "easycache", "threshold": 0.0, "first": 0, "last": 0}}


@pytest.fixture(scope="module")
def host():
    return Host.discover()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def same(one, other):
    return np.array_equal(np.asarray(one), np.asarray(other))


def account(session):
    return session.report["steps"]["caches"]["easycache"]["branches"]


@pytest.mark.parametrize("recipe", sorted(models.RECIPES))
def test_every_recipe_skips_and_never_skips_at_zero(host, recipe):
    """Includes image-to-video's condition channels, per-token timesteps, VACE's hints, and two experts."""
    pipe, arguments = models.RECIPES[recipe]()
    arguments = {**arguments, "num_inference_steps": 6}
    plain = pipe(**models.fresh(arguments)).frames
    with host.session(pipe, NEVER, verify_contents=True) as session:
        assert same(session.pipe(**models.fresh(arguments)).frames, plain)
        claim = session.report["effective"]["easycache"]
        assert (claim["state"], claim["evidence"].get("skipped", 0)) == ("inert", 0)
    with host.session(pipe, SKIPPING, verify_contents=True) as session:
        ours = session.pipe(**models.fresh(arguments)).frames
        claim, rows = session.report["effective"]["easycache"], account(session)
        forwards = session.report["steps"]["forwards"]
    assert claim["state"] == "effective"
    assert np.isfinite(np.asarray(ours)).all() and not same(ours, plain)
    by_expert = {}
    for key, row in rows.items():
        expert, _ = key.split("/")
        assert by_expert.setdefault(expert, row["skipped"]) == row["skipped"], "both branches skip alike"
    assert forwards["called"] - forwards["computed"] == claim["evidence"]["skipped"] > 0
    assert claim["evidence"]["host_syncs"] == claim["evidence"]["skipped"] / 2


def test_two_experts_start_with_two_computed_steps_each(host):
    with host.session(models.p2(), SKIPPING) as session:
        session.pipe(**models.call(num_inference_steps=10))
        rows = account(session)
    assert {key: row["computed"] for key, row in rows.items()} == {
        "transformer/cond": [0, 1],
        "transformer/uncond": [0, 1],
        "transformer_2/cond": [3, 4, 9],
        "transformer_2/uncond": [3, 4, 9],
    }


def test_a_skipped_step_runs_no_block_and_no_head(host):
    with host.session(models.p1(), SKIPPING) as session:
        heads = []
        session.pipe.transformer.proj_out.register_forward_hook(lambda *_: heads.append(1))
        with BlockCalls(session.pipe.transformer) as seen:
            session.pipe(**models.call(num_inference_steps=6))
        assert account(session)["transformer/cond"]["skipped"] == [2, 3, 4]
    assert seen.count == 2 * 3 * 3 and len(heads) == 2 * 3


def test_without_guidance(host):
    with host.session(models.p1(), SKIPPING) as session:
        session.pipe(**models.call(num_inference_steps=6, guidance_scale=1.0))
        assert {key: row["computed"] for key, row in account(session).items()} == {
            "transformer/cond": [0, 1, 5]
        }


def test_the_defaults_compute_a_short_run_and_say_so(host):
    pipe = models.p1()
    plain = pipe(**models.call()).frames
    with host.session(pipe, {"feature_cache": "easycache"}) as session:
        assert torch.equal(session.pipe(**models.call()).frames, plain)
        (fallback,) = session.report["fallbacks"]
        assert session.report["effective"]["easycache"]["state"] == "inert"
    assert "all 4 steps are computed" in fallback["reason"]


def test_two_requests_in_a_row_equal_fresh_sessions_also_after_an_exception(host):
    pipe = models.p1()
    calls = [dict(num_inference_steps=6), dict(seed=3, num_inference_steps=8, height=48)]

    def alone(changes):
        with host.session(pipe, SKIPPING) as session:
            return session.pipe(**models.call(**changes)).frames

    def stop(pipe, step, timestep, tensors):
        if step == 3:
            raise ArithmeticError("injected")
        return {}

    wanted = [alone(changes) for changes in calls]
    with host.session(pipe, SKIPPING, verify_contents=True) as session:
        for changes, expected in zip(calls, wanted, strict=True):
            with pytest.raises(ArithmeticError):
                session.pipe(**models.call(**calls[0]), callback_on_step_end=stop)
            assert session.held_bytes() == 0
            assert torch.equal(session.pipe(**models.call(**changes)).frames, expected)


def test_bf16(host):
    pipe, arguments = models.t2v(torch.bfloat16)
    with host.session(pipe, SKIPPING) as session:
        frames = session.pipe(**{**arguments, "num_inference_steps": 6}).frames
        assert account(session)["transformer/cond"]["skipped"] == [2, 3, 4]
    assert np.isfinite(frames).all()


def test_on_trained_weights(host):
    """12 steps of a small clip: steps are skipped by the rule's own numbers, and the clip stays near the plain one."""
    pipe = models.quiet(load_pipeline(host.model_directory("tiny-wan")))

    def arguments():
        return {
            "prompt": "a red 3 moving left",
            "height": 128,
            "width": 128,
            "num_frames": 5,
            "num_inference_steps": 12,
            "guidance_scale": 3.0,
            "generator": torch.Generator().manual_seed(0),
            "output_type": "pt",
        }

    plain = pipe(**arguments()).frames
    useful = {"feature_cache": {"algorithm": "easycache", "threshold": 0.1, "first": 4}}
    with host.session(pipe, useful) as session:
        ours = session.pipe(**arguments()).frames
        row = account(session)["transformer/cond"]
    assert row["skipped"] and set(row["computed"]) >= {0, 1, 2, 3, 11}
    decided = {reason for step, reason in row["reasons"].items() if 4 <= int(step) < 11}
    assert decided == {"below-threshold", "threshold"}
    psnr = -10 * math.log10(float((ours - plain).double().square().mean()))
    assert BOUND <= psnr < math.inf, psnr


BOUND = 35.0
"""Decibels; 38.9 were measured."""
