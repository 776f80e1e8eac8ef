"""The tiled decode is diffusers' own, bit for bit, and leaves the VAE as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wf_core.api import BadInput
from wf_plugin_vae_tiling.tiles import Tiles

KINDS = ("wan", "wan-2.2", "hunyuan", "hunyuan-1.5")
HUNYUAN = KINDS[2:]
AREA = {"hunyuan-1.5": (5, 6)}


def latents_for(small: SimpleNamespace, kind: str, frames: int = 2, batch: int = 1) -> torch.Tensor:
    made: torch.Tensor = small.noise(frames, *AREA.get(kind, (7, 6)), batch=batch)
    return made


def state(vae: Any) -> dict[str, Any]:
    """What a VAE says about tiles, and the hooks of its decoder."""
    plain = {name: value for name, value in vars(vae).items() if name.startswith(("use_", "tile_"))}
    return {**plain, "hooks": len(vae.decoder._forward_pre_hooks)}


@pytest.mark.parametrize(
    ("kind", "batch"), [*((kind, 1) for kind in KINDS), ("wan", 2), ("hunyuan", 2)], ids=str
)
def test_it_equals_diffusers_tiled_decode_bit_for_bit(kind: str, batch: int, small: SimpleNamespace) -> None:
    latents, vae = latents_for(small, kind, batch=batch), small.own(kind)
    part, before = small.tiled(vae, *small.takes(kind)), state(vae)
    ours = small.decode(part, vae, latents)
    assert torch.equal(ours, small.by_diffusers(kind, latents))
    assert not torch.equal(ours, small.stock(vae, latents)), "tiles make a difference here"
    rows, columns = part.evidence()["grid"]
    assert (rows, columns) == ((2, 2) if kind in AREA else (3, 2))
    assert part.counters.counts == {"attempts": 1, "tiles": rows * columns, "successes": 1}
    assert state(vae) == before


def test_tiles_are_counted_where_the_decoder_runs(small: SimpleNamespace) -> None:
    """A long clip of HunyuanVideo is decoded in windows of frames even without tiles, and each window in tiles."""
    vae, latents = small.own("hunyuan"), small.noise(6, 5, 6)
    calls: list[Any] = []
    handle = vae.decoder.register_forward_hook(lambda module, args, out: calls.append(args[0].shape))
    small.stock(vae, latents)
    windows = len(calls)
    calls.clear()
    part = small.tiled(vae)
    ours = small.decode(part, vae, latents)
    handle.remove()
    assert windows == 2
    assert part.counters.counts["tiles"] == len(calls) == windows * 4
    assert torch.equal(ours, small.by_diffusers("hunyuan", latents))
    decoded = sum(shape[2] * shape[3] * shape[4] for shape in calls)
    assert part.evidence()["decoded_per_latent"] == round(decoded / (6 * 5 * 6), 3)


@pytest.mark.parametrize("kind", ["wan", "hunyuan", "hunyuan-1.5"])
def test_a_video_that_one_tile_covers_is_decoded_as_it_is_and_said_so(
    kind: str, small: SimpleNamespace
) -> None:
    vae, latents = small.own(kind), small.noise(2, 4, 4)
    part = small.tiled(vae, *small.takes(kind))
    assert torch.equal(small.decode(part, vae, latents), small.stock(vae, latents))
    assert part.counters.counts == {"attempts": 1}
    covers = "4 by 4" if kind == "hunyuan-1.5" else "4 by 5"
    assert part.evidence()["no_effect"] == f"one tile of {covers} latents covers the 4 by 4 of the video"


def test_windows_of_frames_are_no_tiles(small: SimpleNamespace) -> None:
    vae, latents = small.own("hunyuan"), small.noise(6, 4, 5)
    part = small.tiled(vae)
    assert torch.equal(small.decode(part, vae, latents), small.stock(vae, latents))
    assert part.counters.counts == {"attempts": 1}


def test_a_decoder_in_its_place_is_no_success(small: SimpleNamespace) -> None:
    vae = small.own("wan")
    part = small.tiled(vae, (4, 5), (3, 4))
    part.decode(lambda latents: latents, small.noise(1, 7, 6))
    assert part.counters.counts == {"attempts": 1}
    assert "something else decoded" in str(part.evidence()["no_effect"])


def test_the_users_vae_is_not_touched_and_a_decode_that_raises_leaves_nothing(small: SimpleNamespace) -> None:
    base, latents = small.own("wan"), latents_for(small, "wan")
    expected, before = small.stock(base, latents), state(base)
    copied = small.copy(base)
    part, own = small.tiled(copied, (4, 5), (3, 4)), state(copied)
    seen = []

    def fail(latents: torch.Tensor) -> torch.Tensor:
        seen.append((state(copied), state(base)))
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        part.decode(fail, latents)
    assert state(copied) == own
    [(inside, outside)] = seen
    assert (inside["use_tiling"], inside["tile_sample_min_height"], inside["hooks"]) == (True, 32, 1)
    assert outside == before
    small.decode(part, copied, latents)
    assert state(base) == before
    assert torch.equal(small.stock(base, latents), expected)


def test_encoding_is_not_tiled(small: SimpleNamespace) -> None:
    vae = small.own("wan")
    clip = torch.rand(1, 3, 5, 56, 48, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before = vae.encode(clip).latent_dist.parameters
        small.decode(small.tiled(vae, (4, 5), (3, 4)), vae, latents_for(small, "wan"))
        assert torch.equal(vae.encode(clip).latent_dist.parameters, before)


def test_a_patched_vae_keeps_its_size(small: SimpleNamespace) -> None:
    """diffusers issue 12191: the patch step must not be lost in tiles of 64 pixels, nor in one of 256."""
    vae, latents = small.own("wan-2.2"), small.noise(2, 4, 6)
    for size, stride in ((4, 3), (16, 12)):
        found = small.decode(small.tiled(vae, (size, size), (stride, stride)), vae, latents)
        assert found.shape == (1, 3, 5, 64, 96)
        assert torch.equal(found, small.stock(vae, latents)) == (size == 16)


# --- refused ----------------------------------------------------------------------------------------------------------


def only_reason(part: Any) -> str:
    [reason] = part.check(None)
    return str(reason)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vae_that_tiles_already_is_refused(kind: str, small: SimpleNamespace) -> None:
    vae = small.own(kind)
    part = small.tiled(vae)
    assert list(part.check(None)) == []
    vae.enable_tiling()
    assert "call vae.disable_tiling()" in only_reason(part)


def test_another_vae_is_refused(small: SimpleNamespace) -> None:
    assert "the VAE is Identity" in only_reason(small.tiled(torch.nn.Identity()))
    assert "the VAE is NoneType" in only_reason(small.tiled(None))


@pytest.mark.parametrize("kind", HUNYUAN)
def test_hunyuan_keeps_its_own_tiles(kind: str, small: SimpleNamespace) -> None:
    assert "keeps its own tiles" in only_reason(small.tiled(small.own(kind), (4, 4), (3, 3)))
    assert list(small.tiled(small.build(kind)).check(None)) == [], "those of a published checkpoint fit"


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("hunyuan", {"tile_sample_min_height": 36}),
        ("hunyuan", {"tile_sample_stride_height": 20}),
        ("hunyuan", {"tile_sample_stride_height": 48}),
        ("hunyuan-1.5", {"tile_sample_min_height": 128}),
        ("hunyuan-1.5", {"tile_overlap_factor": 0.3}),
    ],
    ids=str,
)
def test_own_tiles_that_do_not_fit_are_refused(
    kind: str, changed: dict[str, Any], small: SimpleNamespace
) -> None:
    vae = small.own(kind)
    vars(vae).update(changed)
    reasons = list(small.tiled(vae).check(None))
    assert reasons and all("does not fit its factor" in reason for reason in reasons)


def test_a_stride_above_the_tile_is_refused(small: SimpleNamespace) -> None:
    with pytest.raises(BadInput, match="vae_tile_stride 24 is above vae_tile_size 16 in height"):
        small.tiled(None, (16, 32), (24, 24))


@pytest.mark.parametrize(
    ("size", "stride"), [(None, (24, 24)), ((4, 5), (3, 3)), ((16, 48), (12, 36)), ((1, 2), (1, 1))]
)
def test_without_a_stride_tiles_share_a_quarter(size: Any, stride: Any, small: SimpleNamespace) -> None:
    vae = small.own("wan")
    part = small.tiled(vae, size)
    small.decode(part, vae, small.noise(1, 2, 3))
    assert part.evidence()["stride_latents"] == list(stride)


# --- the grid ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("area", "grid"),
    [((60, 104), (3, 5)), ((90, 160), (4, 7)), ((32, 32), (1, 1)), ((20, 33), (1, 2)), ((25, 33), (2, 2))],
)
def test_the_default_grid_is_that_of_the_stock_loop(area: tuple[int, int], grid: tuple[int, int]) -> None:
    assert Tiles((32, 32), (24, 24)).grid(*area) == grid
