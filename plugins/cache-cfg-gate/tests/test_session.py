"""The gate in real sessions, alone and beside a cache of the blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from support import models
from support.counting import BlockCalls
from wf_core import Host, Refused
from wf_core.testing import load_pipeline

HALF = {"cfg_gate_step": 0.5}
TEACACHE = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0}}
EASYCACHE = {"feature_cache": {"algorithm": "easycache", "threshold": 10.0, "first": 1, "last": 1}}


@pytest.fixture(scope="module")
def host():
    return Host.discover()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def same(one, other):
    return np.array_equal(np.asarray(one), np.asarray(other))


def rows_of(session, cache="cfg-gate"):
    return session.report["steps"]["caches"][cache]["branches"]


@pytest.mark.parametrize("recipe", sorted(models.RECIPES))
def test_every_recipe_is_gated_and_left_alone_at_one(host, recipe):
    pipe, arguments = models.RECIPES[recipe]()
    arguments = {**arguments, "num_inference_steps": 6}
    plain = pipe(**models.fresh(arguments)).frames
    with host.session(pipe, {"cfg_gate_step": 1.0}, verify_contents=True) as session:
        assert same(session.pipe(**models.fresh(arguments)).frames, plain)
        assert session.report["effective"] == {}
    with host.session(pipe, HALF, verify_contents=True) as session:
        ours = session.pipe(**models.fresh(arguments)).frames
        claim, forwards = session.report["effective"]["cfg-gate"], session.report["steps"]["forwards"]
        total = session.report["steps"]["total"]
    assert claim["state"] == "effective"
    assert np.isfinite(np.asarray(ours)).all() and not same(ours, plain)
    evidence = claim["evidence"]
    assert evidence["full_steps"] + evidence["reused_deltas"] == total
    assert forwards["called"] - forwards["computed"] == evidence["reused_deltas"] == evidence["skipped"] > 0


def test_the_gated_calls_run_no_block(host):
    with host.session(models.p1(), HALF) as session:
        with BlockCalls(session.pipe.transformer) as seen:
            session.pipe(**models.call(num_inference_steps=6))
        assert rows_of(session)["transformer/uncond"]["computed"] == [0, 1, 2]
    assert seen.count == 3 * (6 + 3)


def test_the_pipeline_guides_with_the_kept_difference(host):
    """One gated step, checked from outside: the latents of the gated step follow from what the model gave."""
    pipe = models.p1()
    seen = []
    with host.session(pipe, HALF) as session:
        model = session.pipe.transformer
        forward = model.forward

        def watched(*args, **kwargs):
            found = forward(*args, **kwargs)
            seen.append(found[0].clone())
            return found

        model.forward = watched
        session.pipe(**models.call(num_inference_steps=2))
        del model.forward
    c0, u0, c1, u1 = seen
    assert torch.equal(u1, c1 - (c0 - u0))


def test_a_change_of_experts_refreshes_the_difference_whatever_the_second_scale(host):
    """Steps 0 to 2 are the first expert's: the gate stands at step 2, and step 3 is full once more."""
    with host.session(models.p2(), {"cfg_gate_step": 0.2}) as session:
        session.pipe(**models.call(num_inference_steps=10, guidance_scale_2=1.5))
        rows = rows_of(session)
    assert rows["transformer/uncond"]["computed"] == [0, 1]
    assert rows["transformer_2/uncond"]["computed"] == [3]
    assert rows["transformer_2/uncond"]["reasons"]["3"] == "expert-start"


@pytest.mark.parametrize("request_", [{"cfg_gate_step": 0.1}, {"cfg_gate_fraction": 0.1}])
def test_a_run_without_a_full_step_is_refused_before_any_model_call(host, request_):
    with host.session(models.p1(), request_) as session:
        with BlockCalls(session.pipe.transformer) as seen, pytest.raises(Refused, match=r"at least 0\.25"):
            session.pipe(**models.call())
    assert seen.count == 0


def test_a_share_of_zero_is_refused_when_it_is_asked_for(host):
    with pytest.raises(Refused, match="WF-K061"):
        host.session(models.p1(), {"cfg_gate_step": 0.0})


def test_a_run_without_guidance_is_refused(host):
    with host.session(models.p1(), HALF) as session:
        with pytest.raises(Refused, match="WF-K060"):
            session.pipe(**models.call(guidance_scale=1.0))


def test_beside_teacache_every_forward_is_counted_once(host):
    """The gate stands outside: the cache never sees the gated calls, and follows its schedule in the others."""
    pipe = models.p1()
    steps = 8
    with host.session(pipe, {**HALF, **TEACACHE}, verify_contents=True) as session:
        with BlockCalls(session.pipe.transformer) as seen:
            session.pipe(**models.call(num_inference_steps=steps))
        report = session.report
        tea, gate = rows_of(session, "teacache"), rows_of(session)
    assert gate["transformer/uncond"]["skipped"] == [4, 5, 6, 7]
    assert tea["transformer/cond"]["computed"] == [0, 7]
    assert tea["transformer/uncond"] == {
        "computed": [0],
        "skipped": [1, 2, 3],
        "reasons": tea["transformer/uncond"]["reasons"],
    }
    assert report["steps"]["forwards"] == {"called": 2 * steps, "computed": 3}
    assert seen.count == 3 * 3
    assert {name: claim["state"] for name, claim in report["effective"].items()} == {
        "cfg-gate": "effective",
        "teacache": "effective",
    }


def test_beside_teacache_a_change_of_experts_computes_both_branches(host):
    with host.session(models.p2(), {"cfg_gate_step": 0.2, **TEACACHE}) as session:
        session.pipe(**models.call(num_inference_steps=10))
        tea, report = rows_of(session, "teacache"), session.report
    assert tea["transformer_2/uncond"]["computed"] == [3]
    assert tea["transformer_2/cond"]["computed"] == [3, 9]
    assert report["steps"]["forwards"] == {"called": 20, "computed": 2 + 3}


def test_beside_easycache_every_forward_is_counted_once(host):
    pipe = models.p1()
    with host.session(pipe, {**HALF, **EASYCACHE}) as session:
        with BlockCalls(session.pipe.transformer) as seen:
            session.pipe(**models.call(num_inference_steps=8))
        easy, report = rows_of(session, "easycache"), session.report
    assert easy["transformer/cond"]["computed"] == [0, 1, 7]
    assert easy["transformer/uncond"]["computed"] == [0, 1]
    assert report["steps"]["forwards"] == {"called": 16, "computed": 5}
    assert seen.count == 3 * 5


def test_two_requests_in_a_row_equal_fresh_sessions_also_after_an_exception(host):
    pipe = models.p1()
    calls = [dict(num_inference_steps=6), dict(seed=3, num_inference_steps=8, height=48)]

    def alone(changes):
        with host.session(pipe, HALF) as session:
            return session.pipe(**models.call(**changes)).frames

    def stop(pipe, step, timestep, tensors):
        if step == 3:
            raise ArithmeticError("injected")
        return {}

    wanted = [alone(changes) for changes in calls]
    with host.session(pipe, HALF, verify_contents=True) as session:
        for changes, expected in zip(calls, wanted, strict=True):
            with pytest.raises(ArithmeticError):
                session.pipe(**models.call(**calls[0]), callback_on_step_end=stop)
            assert session.held_bytes() == 0
            assert torch.equal(session.pipe(**models.call(**changes)).frames, expected)


def test_bf16(host):
    pipe, arguments = models.t2v(torch.bfloat16)
    with host.session(pipe, HALF) as session:
        frames = session.pipe(**{**arguments, "num_inference_steps": 6}).frames
        assert rows_of(session)["transformer/uncond"]["skipped"] == [3, 4, 5]
    assert np.isfinite(frames).all()


def test_on_trained_weights_alone_and_beside_teacache(host):
    """10 steps of a small clip: near the plain one, and nearer the later the gate stands."""
    pipe = models.quiet(load_pipeline(host.model_directory("tiny-wan")))

    def arguments():
        return {
            "prompt": "a red 3 moving left",
            "height": 64,
            "width": 64,
            "num_frames": 5,
            "num_inference_steps": 10,
            "guidance_scale": 3.0,
            "generator": torch.Generator().manual_seed(0),
            "output_type": "pt",
        }

    plain = pipe(**arguments()).frames
    beside = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 0.3}}
    found = []
    for request in (HALF, {"cfg_gate_step": 0.8}, {"cfg_gate_step": 0.8, **beside}):
        with host.session(pipe, request) as session:
            frames = session.pipe(**arguments()).frames
            assert {c["state"] for c in session.report["effective"].values()} == {"effective"}
        found.append(-10 * math.log10(float((frames - plain).double().square().mean())))
    half, late, both = found
    assert BOUNDS[0] <= half < late < math.inf, found
    assert late >= BOUNDS[1] and BOUNDS[2] <= both < late, found


BOUNDS = (26.0, 42.0, 29.5)
"""Decibels: the gate at half, at 0.8, and at 0.8 beside TeaCache; 28.5, 44.5 and 32.0 were measured."""
