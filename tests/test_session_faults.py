"""Faults around sessions: locks, reports, other threads, and what a technique may do wrong."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading

import pytest
import torch

from support import models
from support.plugins import write_chaos
from wf_core import BadInput, Busy, Host, PluginFault, Refused


@pytest.fixture
def chaos_host(host_with):
    return host_with(write_chaos)


@pytest.fixture
def pipe():
    return models.p1()


def test_the_report_is_plain_json(host, pipe):
    request = {
        "feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0},
        "vae_spatial_tiling": True,
        "vae_tile_size": [3, 3],
        "vae_tile_stride": [2, 2],
    }
    with host.session(pipe, request) as session:
        assert json.loads(session.report.to_json()) == dict(session.report)
        assert set(session.report["effective"]["teacache"]["state"].split()) == {"pending"}
        session.pipe(**models.call(output_type="pt"))
    report = session.report
    assert json.loads(report.to_json()) == dict(report)
    keys = {
        "schema",
        "plan",
        "requested",
        "effective",
        "fallbacks",
        "identity",
        "steps",
        "timing",
        "memory",
        "versions",
    }
    assert keys <= set(report)
    assert report["timing"]["first_run"] is True


def test_a_refused_call_is_reported_as_refused(host, pipe):
    with host.session(pipe, {"attention_backend": "math"}) as session:
        session.pipe(**models.call())
        with pytest.raises(Refused):
            session.pipe(**models.call(height=40))
        report = session.report
    assert report["run"]["state"] == "refused"
    assert "40" in report["run"]["error"]
    assert report["steps"]["calls"] == {}
    assert report["effective"]["math"] == {**report["effective"]["math"], "state": "pending", "evidence": {}}


def test_an_aborted_run_shows_no_evidence_of_another(chaos_host, pipe):
    """Chaos begins before the bystander; when it raises there, the bystander has taken no part in the run."""
    with chaos_host.session(pipe, {"chaos": True, "bystander": True}) as session:
        session.pipe(**models.call())
        assert session.report["effective"]["bystander"]["evidence"] == {"seen": 8, "shown": 8}
        session._opened.techniques["chaos"].at = "begin"
        with pytest.raises(RuntimeError, match="chaos at begin"):
            session.pipe(**models.call())
        assert session.report["run"]["state"] == "aborted"
        assert session.report["effective"]["bystander"]["evidence"] == {}


@pytest.mark.parametrize("place", ["first-step", "decode"])
def test_a_call_that_is_not_eligible_is_computed_densely_when_asked_for(chaos_host, pipe, place):
    arguments = models.call(output_type="pt")
    stock = pipe(**models.fresh(arguments)).frames
    request = {"chaos": {"at": place, "kind": "ineligible"}}
    with chaos_host.session(pipe, request) as session, pytest.raises(PluginFault, match="on_ineligible"):
        session.pipe(**models.fresh(arguments))
    with chaos_host.session(pipe, {**request, "on_ineligible": "dense"}) as session:
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, stock)
        report = session.report
    seam = "vae.decode" if place == "decode" else "denoiser"
    assert report["fallbacks"] == [
        {"feature": "chaos", "seam": seam, "reason": f"chaos at {place}", "count": 1}
    ]
    assert report["effective"]["chaos"]["state"] == "partial"


@pytest.mark.parametrize("place", ["first-step", "decode"])
def test_a_handler_that_returns_another_shape_is_a_fault(chaos_host, pipe, place):
    """One latent frame would be broadcast over all, and give a wrong clip without an error."""
    request = {"chaos": {"at": place, "kind": "shape"}}
    with chaos_host.session(pipe, request) as session, pytest.raises(PluginFault, match=r"chaos.*shape"):
        session.pipe(**models.call(output_type="pt"))


def test_an_interrupt_at_close_lets_go_of_the_process(chaos_host, pipe):
    session = chaos_host.session(pipe, {"chaos": {"at": "close", "kind": "interrupt"}})
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert session.closed
    chaos_host.session(pipe, {"global_precision": True}).close()


def test_a_session_that_is_dropped_open_lets_go_of_the_process(chaos_host, pipe):
    session = chaos_host.session(pipe, {"bystander": True})
    with pytest.raises(Busy, match="bystander"):
        chaos_host.session(models.p1(), {"global_precision": True})
    del session
    gc.collect()
    chaos_host.session(models.p1(), {"global_precision": True}).close()


def test_process_wide_settings_are_held_alone_and_put_back(chaos_host, pipe):
    seen = []

    def look(pipe, index, timestep, values):
        seen.append(torch.get_float32_matmul_precision())
        return values

    before = torch.get_float32_matmul_precision()
    with chaos_host.session(pipe, {"global_precision": True}) as session:
        with pytest.raises(Busy):
            chaos_host.session(models.p1(), {})
        session.pipe(**models.call(num_inference_steps=2), callback_on_step_end=look)
    assert seen == ["medium", "medium"] != [before, before]
    assert torch.get_float32_matmul_precision() == before


def test_another_session_can_be_waited_for_but_never_by_the_thread_that_holds_it(chaos_host, pipe):
    opened = []
    thread = threading.Thread(target=lambda: opened.append(chaos_host.session(pipe, {"bystander": True})))
    thread.start()
    thread.join()
    with pytest.raises(Busy, match="bystander"):
        chaos_host.session(models.p1(), {"global_precision": True})
    timer = threading.Timer(0.3, opened[0].close)
    timer.start()
    chaos_host.session(models.p1(), {"global_precision": True}, wait=20).close()
    timer.join()
    with chaos_host.session(pipe, {"bystander": True}), pytest.raises(Busy, match="this thread"):
        chaos_host.session(models.p1(), {"global_precision": True}, wait=20)


def test_a_change_while_two_sessions_are_open_is_recorded_and_laid_to_nobody(chaos_host, pipe):
    first = chaos_host.session(pipe, {"bystander": True})
    second = chaos_host.session(pipe, {"chaos": {"at": "begin", "kind": "variable"}})
    second.pipe(**models.call())
    second.close()
    try:
        assert os.environ["CHAOS_WAS_HERE"] == "1", "it might be the other session's, so it is left alone"
        (note,) = second.report["unattributed"]
        assert "CHAOS_WAS_HERE" in note["differences"][0]
        assert note["overlapped"] == [first.name]
    finally:
        del os.environ["CHAOS_WAS_HERE"]
        first.close()


def test_a_thread_that_draws_random_numbers_does_not_break_a_plugin(pipe):
    """A host of its own, so that plugins are looked at anew while the other thread draws."""
    done = threading.Event()

    def draw():
        while not done.is_set():
            torch.rand(8)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(20):
            Host.discover().session(pipe, {"attention_backend": "math"}).close()
    finally:
        done.set()
        thread.join()


def test_a_guidance_interval_on_a_pipeline_that_gives_only_names(host):
    """Guidance is off at steps 1 and 2: the unconditional calls keep the step that they belong to."""
    pipe, arguments = models.i2v()

    def interval(pipe, index, timestep, values):
        pipe._guidance_scale = 1.0 if index in (0, 1) else 3.0
        return values

    request = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0}}
    arguments = {**arguments, "num_inference_steps": 6, "output_type": "latent"}
    with host.session(pipe, request) as session:
        session.pipe(**arguments, callback_on_step_end=interval)
        branches = session.report["steps"]["caches"]["teacache"]["branches"]
        assert session.report["identity"] == "context-name"
    uncond = branches["transformer/uncond"]
    assert sorted(uncond["computed"] + uncond["skipped"]) == [0, 3, 4, 5]
    assert branches["transformer/cond"]["computed"] == [0, 5]


def test_a_plan_for_another_model_is_not_opened(host):
    plan = host.resolve(
        models.p1(num_attention_heads=2), {"attention_backend": "math"}, facts={"device.type": "cpu"}
    )
    with host.session(models.p1(), plan):
        pass
    with pytest.raises(BadInput, match="run="):
        host.session(models.p1(), plan, run={"height": 32})


def test_closing_twice_and_using_a_closed_session(host, pipe):
    session = host.session(pipe, {})
    copy = session.pipe
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        copy(**models.call())
    with pytest.raises(RuntimeError, match="closed"):
        copy.transformer(**models.w_inputs())
    with pytest.raises(RuntimeError, match="closed"), session.run():
        pass


def test_unknown_run_facts_are_refused(host):
    with host.session(models.w(), {}) as session:
        with pytest.raises(BadInput, match="num_frame"), session.run(num_frame=5):
            pass
        with pytest.raises(BadInput, match="branches"), session.run(branches=3):
            pass


def test_importing_a_plugin_that_changes_the_process_is_named_and_undone(host_with, pipe):
    """ComfyUI-TRELLIS2#111 (B23): a side effect at import, before anyone asked for the plugin."""
    from support.plugins import write_plugin

    code = """
        import os, random, torch
        torch.set_default_dtype(torch.float64)
        torch.backends.cuda.enable_flash_sdp(False)
        os.environ["TURNED_ON"] = "1"
        torch.manual_seed(0)
    """
    manifest = """
        kind = "fusion"
        summary = "Changes the process at import."
        [[feature]]
        name = "rude"
        tier = "exact"
        summary = "Nothing."
        seams = ["denoiser"]
        stage = "fusion"
        evidence = [{ counter = "seen", at_least = 1 }]
        [[switch]]
        name = "rude"
        feature = "rude"
        form = "flag"
        off = [false]
        doc = "Nothing."
    """
    import textwrap

    host = host_with(lambda root: write_plugin(root, "fusion-rude", textwrap.dedent(manifest), code))
    state = torch.get_rng_state()
    host.session(pipe, {"attention_backend": "math"}).close()
    assert "wf_plugin_fusion_rude" not in sys.modules
    with pytest.raises(PluginFault) as caught:
        host.session(pipe, {"rude": True})
    for word in ("fusion-rude", "float64", "flash", "TURNED_ON", "random"):
        assert word in str(caught.value), word
    assert torch.get_default_dtype() == torch.float32
    assert torch.backends.cuda.flash_sdp_enabled()
    assert "TURNED_ON" not in os.environ
    assert torch.equal(torch.get_rng_state(), state)
