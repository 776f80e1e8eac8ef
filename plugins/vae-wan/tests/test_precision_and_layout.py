"""Autocast and channels-last weights: what they change, and what they must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

AUTOCAST = ("vae-autocast", {"dtype": "bf16"})
LAYOUT = ("vae-channels-last", {})


def clip(vae):
    side = vae.config.scale_factor_spatial * 4
    return torch.rand(1, 3, 9, side, side, generator=torch.Generator().manual_seed(2)) * 2 - 1


@torch.no_grad()
def encode(vae):
    return vae.encode(clip(vae)).latent_dist.parameters


def psnr(found, expected):
    return -10 * torch.log10((found - expected).square().mean() / 4)


@pytest.mark.parametrize(("dtype", "bound"), [("bf16", 40), ("fp16", 60)])
def test_autocast_stays_near_float32(vae, dtype, bound, latents, stacked, stock):
    z = latents()
    decoder = stacked(vae, ("vae-autocast", {"dtype": dtype}))
    found, expected = decoder(z), stock(vae, z)
    assert found.dtype is torch.float32
    assert not torch.equal(found, expected)
    assert psnr(found, expected) >= bound
    [part] = decoder.parts
    assert part.counters.counts == {"attempts": 1, "successes": 1}
    name = {"bf16": "bfloat16", "fp16": "float16"}[dtype]
    assert part.evidence() == {"dtype_inside": name, "dtype_of_weights": "float32"}


def test_autocast_touches_neither_encode_nor_weights(vae, latents, stacked):
    before = encode(vae)
    decoder = stacked(vae, AUTOCAST)
    decoder(latents())
    assert torch.equal(encode(vae), before)
    assert {weight.dtype for weight in vae.parameters()} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_of_a_vae_that_is_there_already_is_no_success(v21, latents, stacked):
    decoder = stacked(v21.to(torch.bfloat16), AUTOCAST)
    decoder(latents(dtype=torch.bfloat16))
    [part] = decoder.parts
    assert part.counters.counts == {"attempts": 1}
    assert part.evidence()["no_effect"] == "the VAE already runs in bfloat16"


def test_autocast_that_torch_does_not_apply_is_no_success(v21, latents, stacked):
    """torch leaves float64 as it is under autocast: seen, and not claimed."""
    decoder = stacked(v21.double(), AUTOCAST)
    decoder(latents(dtype=torch.float64))
    [part] = decoder.parts
    assert part.counters.counts == {"attempts": 1}
    assert part.evidence()["dtype_inside"] == "float64"


def test_channels_last_is_the_same_video(vae, latents, stacked, stock, session_copy):
    z = latents()
    expected = stock(vae, z)
    copy = session_copy(vae)
    decoder = stacked(copy, LAYOUT)
    assert torch.equal(decoder(z), expected)
    [part] = decoder.parts
    assert part.counters.counts == {"attempts": 1, "successes": 1}
    assert part.evidence()["converted_weights"] > 0
    assert part.evidence()["probe_layout"] == "contiguous", "the CPU's kernels do not take the layout up"


def test_channels_last_converts_the_decoders_kernels_only(vae, stacked, session_copy):
    copy = session_copy(vae)
    [part] = stacked(copy, LAYOUT).parts
    convolutions = [module for module in copy.decoder.modules() if isinstance(module, nn.Conv3d)]
    # One input channel, or one position, is the same in both layouts.
    kernels = [m for m in convolutions if m.weight.shape[1] > 1 and m.weight[0, 0].numel() > 1]
    assert part.evidence()["converted_weights"] == len(kernels) > 0
    for module in kernels:
        assert module.weight.is_contiguous(memory_format=torch.channels_last_3d)
        assert not module.weight.is_contiguous()
    assert all(
        module.weight.is_contiguous() for module in copy.encoder.modules() if isinstance(module, nn.Conv3d)
    )


def test_channels_last_never_writes_to_the_users_vae(vae, latents, stacked, session_copy, stock):
    def state():
        return {
            name: (id(weight), weight.data_ptr(), weight.stride(), weight.dtype, weight._version)
            for name, weight in vae.named_parameters()
        }

    before, contents = state(), {name: weight.clone() for name, weight in vae.named_parameters()}
    encoded = encode(vae)
    copy = session_copy(vae)
    decoder = stacked(copy, LAYOUT)
    decoder(latents())
    assert state() == before
    assert all(torch.equal(weight, contents[name]) for name, weight in vae.named_parameters())
    assert torch.equal(encode(copy), encoded)
    assert any(a is not b for a, b in zip(vae.parameters(), copy.parameters(), strict=True))


def test_weights_put_back_by_somebody_else_are_no_success(v21, latents, stacked, session_copy):
    copy = session_copy(v21)
    decoder = stacked(copy, LAYOUT)
    conv = copy.decoder.conv_in
    conv._parameters["weight"] = nn.Parameter(conv.weight.detach().contiguous(), requires_grad=False)
    decoder(latents())
    assert decoder.parts[0].counters.counts == {"attempts": 1}


def test_a_decoder_without_3d_convolutions_is_refused(stacked, v21):
    v21.decoder = nn.Sequential(nn.Conv2d(3, 3, 1))
    [part] = stacked(v21, LAYOUT).parts
    assert list(part.check(None)) == ["the VAE's decoder has no Conv3d weight whose layout could be changed"]
