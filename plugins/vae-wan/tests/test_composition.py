"""All four features on one seam, in the order that the manifest gives them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

AUTOCAST = ("vae-autocast", {"dtype": "bf16"})
LAYOUT = ("vae-channels-last", {})
TILES = ("vae-spatial-tiling", {"tile_size": (4, 4), "tile_stride": (3, 2)})
WINDOWS = ("vae-temporal-chunk", {"chunk_size": 2})


def test_tiles_in_windows_equal_tiles(vae, latents, stacked):
    z = latents(4, 5, 4)
    found = stacked(vae, TILES, WINDOWS)(z)
    assert (found - stacked(vae, TILES)(z)).abs().max() <= 1e-5


def test_all_four(vae, latents, stacked, session_copy):
    z = latents(4, 5, 6)
    plain = stacked(vae, TILES, WINDOWS)(z)
    decoder = stacked(session_copy(vae), AUTOCAST, LAYOUT, TILES, WINDOWS)
    found = decoder(z)
    assert (found.shape, found.dtype) == (plain.shape, torch.float32)
    assert 0 < (found - plain).square().mean() <= 4 * 10 ** (-40 / 10)
    autocast, layout, tiles, windows = decoder.parts
    assert autocast.evidence()["dtype_inside"] == "bfloat16"
    assert layout.counters.counts == {"attempts": 1, "successes": 1}
    assert tiles.counters.counts == {"attempts": 1, "tiles": 4, "successes": 1}
    assert windows.counters.counts == {"attempts": 4, "windows": 4 * 2, "successes": 4}


def test_a_session_beside_another_changes_nothing_for_it(v21, latents, stacked, session_copy, stock):
    z = latents(4, 5, 6)
    expected = stock(v21, z)
    stacked(session_copy(v21), AUTOCAST, LAYOUT, TILES, WINDOWS)(z)
    assert torch.equal(stock(session_copy(v21), z), expected)
    assert torch.equal(stock(v21, z), expected)


@pytest.mark.parametrize("parts", [(TILES,), (WINDOWS,), (TILES, WINDOWS)], ids=len)
def test_decoding_twice_gives_the_same(v21, parts, latents, stacked):
    decoder = stacked(v21, *parts)
    z = latents(4, 5, 6)
    assert torch.equal(decoder(z), decoder(z))


@pytest.mark.parametrize("part", [AUTOCAST, LAYOUT, TILES, WINDOWS], ids=lambda part: part[0])
def test_closing_lets_the_vae_go(v21, part, latents, stacked, session_copy):
    """By reference counts alone: a technique that is still named by somebody must not keep a closed copy alive."""
    copy = session_copy(v21)
    decoder = stacked(copy, part)
    decoder(latents(4, 5, 6))
    [technique] = decoder.parts
    seen = [weakref.ref(copy), *(weakref.ref(module) for module in copy.decoder.modules())]
    gc.disable()
    try:
        technique.close()
        del copy, decoder
        assert [ref() for ref in seen if ref() is not None] == []
    finally:
        gc.enable()
    assert list(technique.held_tensors()) == []
