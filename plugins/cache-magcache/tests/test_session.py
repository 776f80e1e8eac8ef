"""Real sessions, on small random Wan models of every kind and on tiny-wan."""

from __future__ import annotations

import math

import pytest
import torch

from support import models
from support.counting import BlockCalls
from wf_core import Host, Refused
from wf_core.api import BadInput
from wf_core.testing import load_pipeline

RATIOS = [1.0, *[0.99] * 7]
ASKED = {"magcache": {"ratios": RATIOS, "threshold": 1.0, "retention_ratio": 0.0}}
INERT = {"magcache": {"ratios": RATIOS, "threshold": 0.0}}


@pytest.fixture(scope="module")
def host():
    return Host.discover()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def branches_of(session):
    rows = session.report["steps"]["caches"]["magcache"]["branches"]
    return {name: row["computed"] for name, row in rows.items()}


def evidence_of(session):
    return session.report["effective"]["magcache"]["evidence"]


def frames(session, arguments):
    return torch.as_tensor(session.pipe(**models.fresh(arguments)).frames)


def stock(pipe, arguments):
    return torch.as_tensor(pipe(**models.fresh(arguments)).frames)


@pytest.mark.parametrize("recipe", ["t2v", "ti2v", "i2v", "vace", "v2v"])
def test_every_kind_of_pipeline_skips_and_is_untouched_by_a_threshold_of_zero(host, recipe):
    pipe, arguments = models.RECIPES[recipe]()
    arguments |= {"num_inference_steps": 5}
    plain = stock(pipe, arguments)
    with host.session(pipe, INERT) as session:
        assert torch.equal(frames(session, arguments), plain)
        assert session.report["effective"]["magcache"]["state"] == "inert"
        assert evidence_of(session).get("skipped", 0) == 0
    with host.session(pipe, ASKED) as session:
        ours = frames(session, arguments)
        steps = session.report["steps"]["total"]
        assert set(map(tuple, branches_of(session).values())) == {tuple(range(0, steps, 3))}
        assert session.report["effective"]["magcache"]["state"] == "effective"
        assert session.held_bytes() == 0
    assert torch.isfinite(ours).all() and not torch.equal(ours, plain)
    assert torch.equal(stock(pipe, arguments), plain)


def test_per_token_timesteps_are_on_the_schedule(host):
    """TI2V gives each token a timestep of its own."""
    pipe, arguments = models.ti2v()
    with host.session(pipe, ASKED) as session:
        frames(session, arguments)
        assert not session.report["fallbacks"]


def test_two_experts(host):
    pipe = models.p2()
    request = {"magcache": {**ASKED["magcache"], "ratios": [1.0, *[0.99] * 9], "high_noise_steps": 3}}
    with host.session(pipe, request) as session:
        session.pipe(**models.call(num_inference_steps=10))
        assert branches_of(session) == {
            "transformer/cond": [0],
            "transformer/uncond": [0],
            "transformer_2/cond": [3, 6, 9],
            "transformer_2/uncond": [3, 6, 9],
        }
        assert evidence_of(session)["start"] == {"transformer": 1, "transformer_2": 1}
    request["magcache"]["task"] = "i2v"
    with host.session(pipe, request) as session:
        session.pipe(**models.call(num_inference_steps=10))
        assert branches_of(session)["transformer/cond"] == [0, 1, 2]


def test_blocks_are_not_run_at_skipped_steps(host):
    base = models.w()
    ran = []
    with host.session(base, ASKED) as session:
        with session.run(timesteps=(900.0, 700.0, 500.0, 300.0)):
            for index, timestep in enumerate((900.0, 700.0, 500.0, 300.0)):
                with BlockCalls(session.model) as seen, session.model.cache_context("cond"):
                    session.model(**models.w_inputs(seed=index, timestep=timestep))
                ran.append(seen.count)
    assert ran == [4, 0, 0, 4]


def test_without_guidance_there_is_one_branch(host):
    pipe = models.p1()
    with host.session(pipe, ASKED) as session:
        session.pipe(**models.call(guidance_scale=1.0))
        assert branches_of(session) == {"transformer/cond": [0, 3]}
        assert evidence_of(session)["scheduled_skips"] == {"cond": 2}


def test_one_step_runs_plain_with_an_entry_in_the_report(host):
    """A warm-up of one step, and odd numbers of them: never an error."""
    pipe = models.p1()
    for steps in (1, 3, 7):
        with host.session(pipe, {"magcache": {"ratios": RATIOS, "threshold": 0.5}}) as session:
            ours = session.pipe(**models.call(num_inference_steps=steps)).frames
            fallbacks = session.report["fallbacks"]
        if steps == 1:
            assert torch.equal(ours, pipe(**models.call(num_inference_steps=1)).frames)
            assert [entry["reason"] for entry in fallbacks] == ["all 1 steps are computed: 1 nothing-cached"]
        else:
            assert not fallbacks


def test_requests_one_after_another_equal_fresh_sessions(host):
    pipe = models.p1()
    calls = [models.call(seed=1), models.call(seed=2, height=48, num_inference_steps=6)]
    fresh = []
    for call in calls:
        with host.session(pipe, ASKED) as session:
            fresh.append(session.pipe(**models.fresh(call)).frames)
    with host.session(pipe, ASKED) as session:
        for call, expected in zip([*calls, calls[0]], [*fresh, fresh[0]], strict=True):
            assert torch.equal(session.pipe(**models.fresh(call)).frames, expected)


def test_after_an_exception_the_next_run_is_a_fresh_one(host):
    pipe = models.p1()
    with host.session(pipe, ASKED, verify_contents=True) as session:
        expected = session.pipe(**models.call()).frames

        def stop(pipe, step, timestep, values):
            if step == 1:
                raise KeyboardInterrupt
            return values

        with pytest.raises(KeyboardInterrupt):
            session.pipe(**models.call(), callback_on_step_end=stop)
        assert session.held_bytes() == 0
        assert torch.equal(session.pipe(**models.call()).frames, expected)


def test_what_cannot_be_used_is_refused(host):
    pipe = models.p1()
    with pytest.raises(Refused, match="WF-K010"):
        host.resolve(pipe, {"magcache": True})
    with pytest.raises(Refused, match="WF-K013"):
        host.resolve(pipe, {"magcache": {"ratios": RATIOS, "preset": "wan2.1-t2v-1.3b"}})
    for threshold in (-0.1, math.nan, math.inf):
        with pytest.raises(Refused, match="threshold"):
            host.resolve(pipe, {"magcache": {"ratios": RATIOS, "threshold": threshold}})
    with pytest.raises(BadInput, match=r"measured on wan2\.1-t2v-1\.3b"):
        host.session(pipe, {"magcache": {"preset": "wan2.1-t2v-1.3b"}})
    lent = {"magcache": {"preset": "wan2.1-t2v-1.3b"}, "allow_uncalibrated": True}
    with host.session(pipe, lent) as session:
        session.pipe(**models.call(num_inference_steps=6))
        assert "measured on" in evidence_of(session)["uncalibrated"]
        assert evidence_of(session)["interpolated"] == {"transformer": {"from": 50, "to": 6}}
        assert len(evidence_of(session)["notes"]) == 1


def test_bf16(host):
    pipe, arguments = models.RECIPES["t2v"](torch.bfloat16)
    with host.session(pipe, ASKED) as session:
        ours = frames(session, arguments)
        assert evidence_of(session)["skipped"] == 4
    assert torch.isfinite(ours).all()


# --- tiny-wan -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(host):
    return models.quiet(load_pipeline(host.model_directory("tiny-wan")))


def tiny_call(**changes):
    return {
        "prompt": "a red 3 moving left",
        "height": 128,
        "width": 128,
        "num_frames": 5,
        "num_inference_steps": 10,
        "guidance_scale": 3.0,
        "output_type": "latent",
        "generator": torch.Generator().manual_seed(0),
        **changes,
    }


@pytest.fixture(scope="module")
def tiny_plain(tiny):
    with torch.no_grad():
        return tiny(**tiny_call()).frames


def psnr(ours, plain):
    """Decibels of latents, with the plain run's range as the peak."""
    error = float((ours - plain).double().square().mean())
    return 10 * math.log10(float(plain.max() - plain.min()) ** 2 / error) if error else math.inf


def test_tiny_wan_with_its_own_preset(host, tiny, tiny_plain):
    with host.session(tiny, {"magcache": True}) as session:
        ours = session.pipe(**tiny_call()).frames
        shown = evidence_of(session)
        assert shown["source"] == "preset tiny-wan" and "uncalibrated" not in shown
        assert shown["interpolated"] == {"transformer": {"from": 30, "to": 10}}
        assert shown["skipped"] >= 4
        assert session.report["effective"]["magcache"]["state"] == "effective"
    assert 30.0 < psnr(ours, tiny_plain) < math.inf
