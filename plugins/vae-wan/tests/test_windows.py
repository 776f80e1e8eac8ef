"""Temporal chunks against the stock loop over frames."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from wf_plugin_vae_wan.windows import windows


def chunked(size: int) -> tuple[str, dict[str, int]]:
    return ("vae-temporal-chunk", {"chunk_size": size})


@pytest.mark.parametrize(
    ("frames", "size", "expected"),
    [
        (1, 4, [(0, 1)]),
        (2, 4, [(0, 1), (1, 2)]),
        (5, 4, [(0, 1), (1, 5)]),
        (6, 4, [(0, 1), (1, 5), (5, 6)]),
        (4, 1, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
def test_the_first_call_takes_one_frame(frames, size, expected):
    assert windows(frames, size) == expected


def test_the_published_clip_takes_six_calls():
    """21 latent frames are 81 pixel frames."""
    assert len(windows(21, 4)) == 6


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_equal_to_the_stock_decode(vae, size, dtype, bound, latents, stacked, stock):
    vae.to(dtype)
    z = latents(7, 3, 2, dtype=dtype)
    expected, found = stock(vae, z), stacked(vae, chunked(size))(z)
    assert (found.shape, found.dtype) == (expected.shape, dtype)
    assert (found - expected).abs().max() <= bound
    assert size != 1 or torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(1, 5, 3, 1), (2, 2, 7, 2), (3, 1, 1, 1)], ids=str)
def test_odd_sizes_and_batches(vae, shape, latents, stacked, stock):
    frames, height, width, batch = shape
    z = latents(frames, height, width, batch)
    found = stacked(vae, chunked(2))(z)
    assert found.is_contiguous()
    assert (found - stock(vae, z)).abs().max() <= 1e-5


def test_a_batch_is_decoded_as_it_comes(v21, latents, stacked, stock):
    """Slicing a batch is the model family's business, outside the seam: it is not done a second time here."""
    v21.use_slicing = True
    seen = []
    decoder = stacked(v21, chunked(2))
    handle = v21.post_quant_conv.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[0]))
    found = decoder(latents(batch=2))
    handle.remove()
    assert seen == [2]
    assert (found - stock(v21, latents(batch=2))).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("frames", "size", "counts"),
    [
        (7, 2, {"attempts": 1, "windows": 3, "successes": 1}),
        (7, 6, {"attempts": 1, "windows": 1}),
        (1, 2, {"attempts": 1, "windows": 0}),
    ],
)
def test_one_window_is_no_success(v21, frames, size, counts, latents, stacked):
    decoder = stacked(v21, chunked(size))
    decoder(latents(frames=frames))
    [part] = decoder.parts
    assert part.counters.counts == counts
    assert part.evidence().get("single_window", False) == (counts["windows"] == 1)


def test_evidence_lists_the_calls(v21, latents, stacked):
    decoder = stacked(v21, chunked(2))
    decoder(latents(frames=6))
    assert decoder.parts[0].evidence() == {"frames_per_call": [1, 2, 2, 1]}


def test_a_failure_leaves_nothing_behind(v21, latents, stacked, stock):
    """The frames kept for the next call go with the decode that kept them."""
    z = latents(frames=5)
    expected = stock(v21, z)
    kept = []

    def fail(module, args, output):
        kept.append(weakref.ref(output))
        if len(kept) == 3:
            raise RuntimeError("in the middle")

    decoder = stacked(v21, chunked(1))
    handle = v21.decoder.mid_block.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        decoder(z)
    handle.remove()
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    assert not any(isinstance(item, torch.Tensor) for item in v21._feat_map)
    assert list(decoder.parts[0].held_tensors()) == []
    assert torch.equal(stacked(v21, chunked(1))(z), expected)


def test_a_failure_of_the_stock_decode_is_cleaned_up_too(v21, latents, stacked):
    decoder = stacked(v21, ("vae-autocast", {"dtype": "bf16"}))
    handle = v21.decoder.conv_out.register_forward_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decoder(latents())
    handle.remove()
    assert not any(isinstance(item, torch.Tensor) for item in v21._feat_map)


@pytest.mark.parametrize(
    "feature", [chunked(2), ("vae-spatial-tiling", {"tile_size": (4, 4), "tile_stride": (2, 2)})]
)
def test_the_vaes_own_tiling_is_refused(v21, feature, stacked):
    [part] = stacked(v21, feature).parts
    assert list(part.check(None)) == []
    v21.enable_tiling()
    assert any("disable_tiling" in reason for reason in part.check(None))


def test_another_vae_is_refused(stacked):
    from wf_plugin_vae_wan.features import build

    part = build(*chunked(2))
    part.prepare({"vae": torch.nn.Identity()})
    assert list(part.check(None)) == ["the VAE is Identity; this feature decodes with AutoencoderKLWan only"]
