"""However a session ends, the base and the process are as before, and the next request is right."""

from __future__ import annotations

import itertools
import os

import pytest
import torch

from support import models
from support.plugins import write_chaos
from wf_core import BaseModified, PluginFault, Refused
from wf_core.isolation.fingerprint import fingerprint
from wf_core.isolation.guard import ProcessState

ATTENTION = [{}, {"attention_backend": "sdpa"}, {"attention_backend": "math"}, {"attention_backend": "torch_flash"},
             {"attention_backend": "flex"}]  # fmt: skip
CACHE = [{}, {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 0.3}}]
VAE = [
    {},
    {"vae_spatial_tiling": True, "vae_tile_size": [3, 3], "vae_tile_stride": [2, 2]},
    {"vae_temporal_chunk_size": 1},
    {"vae_decode_autocast": "bf16"},
    {"vae_channels_last_3d": True},
    {
        "vae_spatial_tiling": True,
        "vae_tile_size": [3, 3],
        "vae_tile_stride": [2, 2],
        "vae_temporal_chunk_size": 1,
        "vae_decode_autocast": "bf16",
        "vae_channels_last_3d": True,
    },
]
TILES = ("vae_tile_size", "vae_tile_stride")


def asked(request):
    """The keys that turn a feature on."""
    return request.keys() - {*TILES}


# Two features or more: what one feature alone leaves behind, every plugin's conformance tests tell.
COMBINATIONS = [
    {**a, **c, **v} for a, c, v in itertools.product(ATTENTION, CACHE, VAE) if len(asked({**a, **c, **v})) > 1
]


@pytest.fixture(scope="module")
def pipe():
    return models.p1(scheduler=models.unipc())


@pytest.fixture(scope="module")
def arguments():
    return models.call(num_inference_steps=4, output_type="pt")


@pytest.fixture(scope="module")
def plain(pipe, arguments):
    return pipe(**models.fresh(arguments)).frames


def assert_next_request_is_right(pipe, arguments, plain):
    assert torch.equal(pipe(**models.fresh(arguments)).frames, plain)


def test_every_installed_combination_leaves_the_base_and_the_process_untouched(host, pipe, arguments, plain):
    process = ProcessState.capture()
    before = fingerprint(pipe, contents=True)
    for request in COMBINATIONS:
        with host.session(pipe, request, verify_contents=True) as session:
            session.pipe(**models.fresh(arguments))
            report = session.report
        assert len(report["effective"]) == len(asked(request)), request
        assert report["memory"]["held_bytes"] == 0
        assert before.diff(fingerprint(pipe, contents=True)) == [], request
        assert process.diff(ProcessState.capture()) == [], request
    assert_next_request_is_right(pipe, arguments, plain)


PLACES = [
    "build",
    "activation",
    "begin",
    "first-step",
    "middle-step",
    "attention",
    "decode",
    "evidence",
    "end",
    "close",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_plugin_that_raises_leaves_nothing_behind(host_with, pipe, arguments, plain, place):
    host = host_with(write_chaos)
    process = ProcessState.capture()
    before = fingerprint(pipe, contents=True)
    with pytest.raises((PluginFault, RuntimeError)) as caught:
        with host.session(pipe, {"chaos": {"at": place}}, verify_contents=True) as session:
            session.pipe(**models.fresh(arguments))
    told = str(caught.value) + " ".join(getattr(caught.value, "__notes__", ()))
    assert "fusion-chaos" in told, "the plugin must be named"
    assert f"chaos at {place}" in told
    assert before.diff(fingerprint(pipe, contents=True)) == []
    assert process.diff(ProcessState.capture()) == []
    assert_next_request_is_right(pipe, arguments, plain)


def test_a_plugin_that_raises_at_import_leaves_nothing_behind(host_with, monkeypatch, pipe, arguments, plain):
    import sys

    monkeypatch.setenv("CHAOS_AT", "import")
    host = host_with(write_chaos)
    before = fingerprint(pipe, contents=True)
    with pytest.raises(PluginFault, match="chaos at import"):
        host.session(pipe, {"chaos": True})
    assert not [name for name in sys.modules if name.startswith("wf_plugin_fusion_chaos")]
    assert before.diff(fingerprint(pipe, contents=True)) == []
    assert_next_request_is_right(pipe, arguments, plain)


CACHE_REQUEST = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0}}


def test_an_interrupted_run_is_reported(host, pipe, arguments):
    def interrupt(pipe, index, timestep, values):
        if index == 1:
            pipe._interrupt = True
        return values

    with host.session(pipe, CACHE_REQUEST) as session:
        session.pipe(**models.fresh(arguments), callback_on_step_end=interrupt)
        report = session.report
    assert report["run"]["state"] == "interrupted"
    assert report["steps"]["calls"] == {"transformer/cond": 2, "transformer/uncond": 2}


def test_writing_to_a_weight_of_the_base_is_an_error_that_names_the_plugin(host, pipe, arguments):
    weight = pipe.transformer.blocks[0].ffn.net[2].weight
    session = host.session(pipe, {"attention_backend": "math"}, verify_contents=True)
    with torch.no_grad():
        weight.add_(1.0)
    try:
        with pytest.raises(BaseModified, match=r"blocks\.0\.ffn.*") as caught:
            session.close()
        assert caught.value.plugins == ("attention-sdpa",)
    finally:
        with torch.no_grad():
            weight.sub_(1.0)


CHANGES = {
    "flag": ("math", torch.backends.cuda.math_sdp_enabled, True),
    "variable": ("CHAOS_WAS_HERE", lambda: os.environ.get("CHAOS_WAS_HERE"), None),
    "grad": ("grad_mode", torch.is_grad_enabled, True),
}


@pytest.mark.parametrize("place", ["activation", "begin", "end", "close"])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_process_wide_change_of_a_plugin_is_undone_and_named(host_with, pipe, arguments, kind, place):
    told, read, before = CHANGES[kind]
    host = host_with(write_chaos)
    session = host.session(pipe, {"chaos": {"at": place, "kind": kind}})
    session.pipe(**models.fresh(arguments))
    with pytest.raises(BaseModified, match=told) as caught:
        session.close()
    assert caught.value.plugins == ("fusion-chaos",)
    assert read() == before


def test_what_the_user_sets_while_a_session_is_open_is_the_users(host, pipe, arguments, monkeypatch):
    with torch.no_grad():
        session = host.session(pipe, {"attention_backend": "math"})
    session.pipe(**models.fresh(arguments))
    monkeypatch.setenv("OF_THE_USER", "1")
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        session.close()
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert os.environ["OF_THE_USER"] == "1"
        assert torch.is_grad_enabled()
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_patching_a_class_is_an_error_that_names_class_and_plugin(host_with, pipe, arguments):
    host = host_with(write_chaos)
    block = type(pipe.transformer.blocks[0])
    stock = block.forward
    session = host.session(pipe, {"chaos": {"at": "activation", "kind": "class"}})
    try:
        with pytest.raises(BaseModified, match=r"WanTransformerBlock: forward") as caught:
            session.close()
    finally:
        block.forward = stock
        del block.forward_of_before
    assert caught.value.plugins == ("fusion-chaos",)


def test_a_refusal_at_the_begin_of_a_run_makes_no_model_call(host, pipe):
    with host.session(pipe, {}) as session:
        calls = []
        session.pipe.transformer.register_forward_pre_hook(lambda *_: calls.append(1))
        with pytest.raises(Refused, match="40"):
            session.pipe(**models.call(height=40))
        with pytest.raises(Refused, match="9"):
            session.pipe(**models.call(num_frames=10))
        assert calls == []
        session.pipe(**models.call())
        assert calls
