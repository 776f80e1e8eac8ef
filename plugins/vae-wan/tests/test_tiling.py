"""Spatial tiling: the geometry, the average, and how far it may be from the untiled decode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from wf_core.api import BadInput
from wf_plugin_vae_wan.features import build
from wf_plugin_vae_wan.tiles import Span, ramp, spans


def tiled(size, stride):
    return ("vae-spatial-tiling", {"tile_size": size, "tile_stride": stride})


def positions(length, size, stride):
    return [(span.start, span.end) for span in spans(length, size, stride)]


@pytest.mark.parametrize(
    ("length", "size", "stride", "expected"),
    [
        (60, 34, 18, [(0, 34), (18, 52), (36, 60)]),
        (104, 34, 16, [(0, 34), (16, 50), (32, 66), (48, 82), (64, 98), (80, 104)]),
        (34, 34, 18, [(0, 34)]),
        (35, 34, 18, [(0, 34), (18, 35)]),
        (5, 2, 2, [(0, 2), (2, 4), (4, 5)]),
        (3, 8, 1, [(0, 3)]),
    ],
)
def test_covered_tails_are_not_decoded(length, size, stride, expected):
    assert positions(length, size, stride) == expected


def test_480p_takes_18_tiles():
    assert len(spans(60, 34, 18)) * len(spans(104, 34, 16)) == 18


@pytest.mark.parametrize("length", range(1, 40))
def test_every_position_has_a_weight(length):
    for size in range(1, 9):
        for stride in range(1, size + 1):
            total = torch.zeros(length)
            for span in spans(length, size, stride):
                total[span.start : span.end] += ramp(
                    span.end - span.start, size - stride, span, torch.float32, torch.device("cpu")
                )
            assert (total > 0).all(), (size, stride)


def test_slopes_only_towards_neighbours():
    def weights(before, after):
        return ramp(6, 4, Span(0, 6, before, after), torch.float64, torch.device("cpu")).tolist()

    assert weights(False, False) == [1, 1, 1, 1, 1, 1]
    assert weights(True, False) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert weights(False, True) == [1, 1, 1, 0.75, 0.5, 0.25]
    assert weights(True, True) == [0.25, 0.5, 0.75, 0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("size", "stride", "axis"),
    [((4, 4), (5, 4), "height"), ((4, 4), (4, 5), "width"), ((4, 4), (0, 4), "height")],
)
def test_a_stride_above_the_tile_is_bad_input(size, stride, axis):
    with pytest.raises(BadInput, match=rf"vae_tile_stride .* vae_tile_size 4 in {axis}"):
        build(*tiled(size, stride))


def test_one_tile_is_the_untiled_decode_and_no_success(vae, latents, stacked, stock):
    z = latents(height=3, width=4)
    decoder = stacked(vae, tiled((3, 4), (2, 2)))
    assert torch.equal(decoder(z), stock(vae, z))
    assert decoder.parts[0].counters.counts == {"attempts": 1, "tiles": 1}


def test_a_decoder_without_neighbours_is_reproduced_exactly():
    """Where a tile's content does not depend on what is around it, tiling must change nothing but rounding."""
    part = build(*tiled((4, 5), (3, 2)))

    def enlarge(z: torch.Tensor) -> torch.Tensor:
        return F.interpolate(z[:, :3].tanh(), scale_factor=(1, 8, 8), mode="nearest")

    z = torch.randn(2, 16, 3, 11, 9, generator=torch.Generator().manual_seed(0))
    rows, columns = spans(11, 4, 3), spans(9, 5, 2)
    found = part._accumulate(enlarge, z, rows, columns)
    assert len(rows) * len(columns) == 12
    assert (found - enlarge(z)).abs().max() <= 1e-6


@torch.no_grad()
def smooth(vae):
    """Give the decoder weights that look little beyond their own place, as those of a trained one do."""
    for name, weight in vae.decoder.named_parameters():
        if weight.dim() >= 4 and weight.shape[-1] == 3:
            centre = torch.zeros_like(weight)
            centre[..., 1, 1] = weight[..., 1, 1]
            weight.copy_(centre + 0.05 * (weight - centre))
        if "attentions" in name and "proj" in name:
            weight.mul_(0.05)
    return vae


@pytest.mark.parametrize("overlap", [2, 3])
def test_near_the_untiled_decode_on_smooth_weights(vae, overlap, latents, stacked, stock):
    z = latents(2, 8, 8)
    decoder = stacked(smooth(vae), tiled((5, 5), (5 - overlap, 5 - overlap)))
    found, expected = decoder(z), stock(vae, z)
    assert decoder.parts[0].counters.counts["successes"] == 1
    assert 0 < (found - expected).abs().max() <= 0.1
    assert (found - expected).square().mean() <= 4 * 10 ** (-50 / 10), "50 dB below the range of 2"


def test_the_middle_of_a_tile_is_the_tiles_own(v21, latents, stacked, stock):
    """With no overlap each tile is decoded as if it were a video of its own."""
    z = latents(2, 4, 8)
    found = stacked(v21, tiled((4, 4), (4, 4)))(z)
    assert torch.equal(found[..., :32], stock(v21, z[..., :4]))
    assert torch.equal(found[..., 32:], stock(v21, z[..., 4:]))


@pytest.mark.parametrize("sizes", [(64, 48), (128, 96), (256, 192)], ids=str)
def test_patched_vae_keeps_its_size(v22, sizes, latents, stacked, stock):
    """diffusers issue 12191: the patch step must not be lost. Sizes in pixels, 16 to a latent."""
    tile, stride = (size // 16 for size in sizes)
    z = latents(3, 8, 12)
    attributes = {name: value for name, value in vars(v22).items() if name.startswith(("tile_", "use_"))}
    expected = stock(v22, z)
    found = stacked(v22, tiled((tile, tile), (stride, stride)))(z)
    assert found.shape == (1, 3, 9, 128, 192)
    assert torch.equal(found, expected) == (sizes == (256, 192))
    assert torch.equal(stock(v22, z), expected)
    assert {name: vars(v22)[name] for name in attributes} == attributes
    with torch.no_grad():
        assert v22.encode(found).latent_dist.mode().shape == (1, 16, 3, 8, 12)


@pytest.mark.parametrize("shape", [(1, 9, 5, 1), (2, 5, 7, 2)], ids=str)
def test_odd_sizes_single_frames_and_batches(vae, shape, latents, stacked, stock):
    frames, height, width, batch = shape
    z = latents(frames, height, width, batch)
    found = stacked(vae, tiled((4, 4), (3, 2)))(z)
    assert found.shape == stock(vae, z).shape
    assert 0 < found.abs().max() <= 1
    alone = torch.cat([stacked(vae, tiled((4, 4), (3, 2)))(part) for part in z.split(1)])
    assert (found - alone).abs().max() <= 1e-5
    top_left = stock(vae, z[..., :4, :4])
    own = 2 * vae.config.scale_factor_spatial  # two latents of rows and columns, where no other tile reaches
    assert (found[..., :own, :own] - top_left[..., :own, :own]).abs().max() <= 1e-5


def test_evidence_is_the_grid_and_the_price(v21, latents, stacked):
    decoder = stacked(v21, tiled((4, 4), (2, 3)))
    decoder(latents(1, 6, 7))
    assert decoder.parts[0].evidence() == {
        "grid": [2, 2],
        "tile_latents": [4, 4],
        "stride_latents": [2, 3],
        "decoded_area": round(8 * 8 / 42, 3),
    }
