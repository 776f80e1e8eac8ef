"""Sessions on the tiny pipelines of both families: the whole way from the request to the report."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wf_core import Host
from wf_core.testing import host_of

TINY = {"cosmos": "wf_plugin_cosmos", "hunyuan": "wf_plugin_hunyuan"}
SHORT = {"num_inference_steps": 2, "height": 48}
OWN = dict(zip(("height", "width"), ((32, 24), (24, 16)), strict=True))
"""Pixels and stride of the tiles that the VAE of HunyuanVideo has of its own here."""


@pytest.fixture(scope="module", params=TINY)
def family(request: pytest.FixtureRequest) -> SimpleNamespace:
    """A pipeline of the family, the request, and the VAE as ``enable_tiling`` leaves it."""
    bench = pytest.importorskip(f"{TINY[request.param]}.trial").bench()
    pipe = bench.pipeline()
    numbers = {f"tile_sample_min_{side}": size for side, (size, _) in OWN.items()}
    numbers |= {f"tile_sample_stride_{side}": stride for side, (_, stride) in OWN.items()}
    asked: dict[str, Any] = {"vae_tiling": True}
    if request.param == "hunyuan":
        pipe.vae.enable_tiling(**numbers)
        pipe.vae.disable_tiling()
    else:
        asked |= {"vae_tile_size": [4, 3], "vae_tile_stride": [3, 2]}
    by_hand = copy.copy(pipe)
    by_hand.vae = copy.deepcopy(pipe.vae)
    by_hand.vae.enable_tiling(**numbers)
    return SimpleNamespace(bench=bench, pipe=pipe, asked=asked, by_hand=by_hand, name=request.param)


@pytest.fixture(scope="module")
def host() -> Host:
    return host_of("wf_plugin_vae_tiling", *TINY.values())


def run(pipe: Any, family: SimpleNamespace, **changes: Any) -> torch.Tensor:
    frames: torch.Tensor = pipe(**family.bench.arguments(**{**SHORT, **changes})).frames
    return frames


def test_a_session_is_the_pipeline_with_diffusers_tiling_on(host: Host, family: SimpleNamespace) -> None:
    plain = run(family.pipe, family)
    with host.session(family.pipe, family.asked, verify_contents=True) as session:
        ours = run(session.pipe, family)
        claim = session.report["effective"]["vae-tiling"]
        assert session.pipe.vae.use_tiling is False
    assert claim["state"] == "effective"
    evidence = claim["evidence"]
    assert evidence["grid"] == [2, 2] and evidence["tiles"] == 4
    assert (evidence["attempts"], evidence["successes"]) == (1, 1)
    assert evidence["tile_latents"] == [4, 3] and evidence["stride_latents"] == [3, 2]
    assert evidence["decoded_per_latent"] > 1
    assert torch.equal(ours, run(family.by_hand, family))
    assert not torch.equal(ours, plain)
    assert torch.equal(run(family.pipe, family), plain), "the user's pipeline decodes as before"


def test_a_clip_that_one_tile_covers_is_inert_with_the_reason(host: Host, family: SimpleNamespace) -> None:
    whole = {"vae_tiling": True} if family.name == "cosmos" else family.asked
    small = {} if family.name == "cosmos" else {"height": 32, "width": 16}
    plain = run(family.pipe, family, **small)
    with host.session(family.pipe, whole) as session:
        assert torch.equal(run(session.pipe, family, **small), plain)
        claim = session.report["effective"]["vae-tiling"]
    assert claim["state"] == "inert"
    assert "tiles" not in claim["evidence"]
    assert claim["evidence"]["no_effect"].startswith("one tile of ")
