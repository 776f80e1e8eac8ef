"""The VAE's seams, and the causal cache that an aborted decode leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.vae import DecoderOutput
from diffusers.models.modeling_outputs import AutoencoderKLOutput


def open_vae(tiny: SimpleNamespace, vae: Any, *seams: str, **more: Any) -> Any:
    return tiny.opened({"vae": tiny.copy(vae)}, seams, **more)


@pytest.fixture(params=[False, True], ids=["2.1", "2.2"])
def vae(request: pytest.FixtureRequest, tiny: SimpleNamespace) -> Any:
    return tiny.vae(residual=request.param)


@pytest.fixture
def latents(vae: Any) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(2, vae.config.z_dim, 2, 4, 6)


@pytest.mark.parametrize("slicing", [False, True])
def test_decode_through_the_seam_is_bit_identical(slicing: bool, vae: Any, latents: Any, tiny: Any) -> None:
    opened = open_vae(tiny, vae, "vae.decode")
    copied = opened.components["vae"]
    vae.use_slicing = copied.use_slicing = slicing
    out, stock = copied.decode(latents), vae.decode(latents)
    as_tuple = copied.decode(latents, return_dict=False)
    assert isinstance(out, DecoderOutput)
    assert type(as_tuple) is tuple
    assert torch.equal(out.sample, stock.sample)
    assert torch.equal(as_tuple[0], stock.sample)
    batches = [shapes[0][0] for _, shapes in opened.seen.of("vae.decode")]
    assert batches == ([1, 1, 1, 1] if slicing else [2, 2])


def test_encode_through_the_seam_is_bit_identical(vae: Any, tiny: Any) -> None:
    opened = open_vae(tiny, vae, "vae.encode")
    torch.manual_seed(6)
    video = torch.randn(2, 3, 5, 32, 32)
    for slicing in (False, True):
        vae.use_slicing = opened.components["vae"].use_slicing = slicing
        out, stock = opened.components["vae"].encode(video), vae.encode(video)
        assert isinstance(out, AutoencoderKLOutput)
        assert torch.equal(out.latent_dist.parameters, stock.latent_dist.parameters)
    assert torch.equal(
        opened.components["vae"].encode(video, return_dict=False)[0].mean, stock.latent_dist.mean
    )
    assert len(opened.seen.of("vae.encode")) == 3


def test_a_handler_may_decode_in_place_of_the_stock_vae(vae: Any, latents: Any, tiny: Any) -> None:
    grey = torch.full_like(vae.decode(latents).sample, 0.25)
    opened = open_vae(tiny, vae, claims={"vae.decode": lambda inner, site, z: grey})
    assert torch.equal(opened.components["vae"].decode(latents).sample, grey)


def test_tiling_set_on_the_copy_is_obeyed_and_not_seen_by_the_base(vae: Any, latents: Any, tiny: Any) -> None:
    opened = open_vae(tiny, vae, "vae.decode")
    tiled, plain = opened.components["vae"], vae.decode(latents).sample
    tiled.enable_tiling(32, 32, 32, 32)
    assert tiled.decode(latents).sample.shape == plain.shape
    assert not torch.equal(tiled.decode(latents).sample, plain)
    assert torch.equal(vae.decode(latents).sample, plain)


@pytest.mark.parametrize("seams", [(), ("vae.decode",)])
def test_release_drops_what_an_aborted_decode_left(
    seams: tuple[str, ...], vae: Any, latents: Any, tiny: Any
) -> None:
    opened = open_vae(tiny, vae, *seams)
    copied = opened.components["vae"]

    def fail(module: Any, args: Any) -> None:
        raise RuntimeError("out of luck")

    handle = copied.decoder.conv_out.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        copied.decode(latents)
    assert any(isinstance(kept, torch.Tensor) for kept in copied._feat_map)
    opened.family.release(opened.components)
    assert not any(isinstance(kept, torch.Tensor) for kept in (*copied._feat_map, *copied._enc_feat_map))
    handle.remove()
    assert torch.equal(copied.decode(latents).sample, vae.decode(latents).sample)


def test_release_without_a_vae_or_before_its_first_use(tiny: Any) -> None:
    opened = tiny.open(tiny.model("t2v"))
    opened.family.release(opened.components)
    fresh = open_vae(tiny, tiny.vae())
    fresh.family.release(fresh.components)
    assert "_feat_map" not in vars(fresh.components["vae"])
