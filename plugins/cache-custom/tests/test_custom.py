"""TeaCache's decision with a continued residual: by hand, and on tiny-wan beside TeaCache itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import wf_plugin_cache_custom as plugin
from wf_core.api import BadInput, Facts
from wf_core.testing import CacheDriver

(VECTOR,) = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())["vectors"]
T2V = Facts.of({"model.id": "wan2.1-t2v-1.3b"}, "test")


class Ramp:
    """A signal ``[t, t, t, t]``: the distance from t' to t is |t - t'| / |t'|."""

    def __call__(self, timesteps):
        rows = torch.tensor(timesteps, dtype=torch.float32)[:, None].expand(-1, 4)
        return {"e": rows, "e0": rows.repeat(1, 6)}


def timesteps(distances, start=1000.0):
    found = [start]
    for distance in distances[1:]:
        found.append(found[-1] * (1 + distance))
    return found


def cache(order=1, **options):
    return plugin.wf_feature_cache("custom", {"order": order, **options}, T2V)


def play_vector(order):
    """The residual that each step of the vector added to an input of 100, and the steps computed."""
    given = VECTOR["inputs"]
    residual = {"now": 0.0}
    player = CacheDriver(
        cache(order, preset=given["preset"], threshold=given["thresh"]),
        [lambda x: x + residual["now"]],
        Ramp(),
    )
    run = player.view(timesteps(given["d"]))
    player.begin(run)
    used = []
    for step, timestep in enumerate(run.timesteps):
        residual["now"] = 1 + 0.1 * step + 0.02 * step * step
        x = torch.full((1, 2, 4), 100.0, dtype=torch.float64)
        used.append(float(player.call(step, x, timestep=timestep, total=12).mean()) - 100.0)
    return used, player


def test_vector_through_the_technique():
    used, player = play_vector(order=1)
    assert player.computed() == VECTOR["expected"]["compute_steps"]
    assert used == pytest.approx(VECTOR["expected"]["residual_used"], abs=1e-6)
    assert player.cache.evidence()["order"] == 1


def test_order_0_repeats_the_residual_as_teacache_does():
    used, player = play_vector(order=0)
    line = VECTOR["expected"]["residual_used"]
    assert player.computed() == VECTOR["expected"]["compute_steps"]
    for step in range(12):
        anchor = max(s for s in player.computed() if s <= step)
        assert used[step] == pytest.approx(1 + 0.1 * anchor + 0.02 * anchor**2, abs=1e-6)
    assert used[4] != pytest.approx(line[4], abs=1e-3), "the two orders differ where a slope is known"


def test_two_tensors_of_a_branch_are_kept_and_released():
    _, player = play_vector(order=1)
    assert sum(t.numel() for t in player.cache.held_tensors()) == 2 * 8
    player.cache.end()
    assert list(player.cache.held_tensors()) == []


def test_a_model_without_a_polynomial_is_told_what_to_give():
    with pytest.raises(BadInput, match="give coefficients"):
        plugin.wf_feature_cache("custom", {"order": 1}, Facts.of({"model.id": "unknown"}, "test"))


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_a_threshold_that_is_no_threshold_is_refused(host_and_pipe, bad):
    from wf_core import Refused

    host, pipe = host_and_pipe
    with pytest.raises(Refused, match="threshold"):
        host.resolve(pipe, {"feature_cache": {"algorithm": "custom", "threshold": bad}})


def test_on_tiny_wan_the_line_is_nearer_to_the_plain_run_than_the_repeated_residual(host_and_pipe):
    host, pipe = host_and_pipe
    call = dict(
        prompt="a red 3 moving left",
        height=64,
        width=64,
        num_frames=9,
        guidance_scale=3.0,
        num_inference_steps=30,
        output_type="latent",
    )

    def seeded():
        return torch.Generator().manual_seed(5)

    plain = pipe(**call, generator=seeded()).frames
    errors, skipped = {}, {}
    for name, request in {
        "custom": {"feature_cache": {"algorithm": "custom", "signal": "e"}},
        "teacache": {"teacache": {"signal": "e"}},
    }.items():
        with host.session(pipe, request) as session:
            out = session.pipe(**call, generator=seeded()).frames
            errors[name] = float((out - plain).square().mean())
            skipped[name] = session.report["steps"]["caches"][name]["skipped"]
            assert session.report["effective"][name]["state"] == "effective"
    assert skipped["custom"] == skipped["teacache"] > 0
    assert errors["custom"] < errors["teacache"] / 2


@pytest.fixture(scope="module")
def host_and_pipe():
    diffusers = pytest.importorskip("diffusers")
    from wf_core import Host

    host = Host.discover()
    pipe = diffusers.WanPipeline.from_pretrained(host.model_directory("tiny-wan"))
    pipe.set_progress_bar_config(disable=True)
    return host, pipe
