"""What diffusers' VAEs are told, and keep as attributes, about their tiles.

Each decodes in tiles while ``use_tiling`` is set. ``enable_tiling`` sets it for good and for encoding too, so that here
the attributes are set on the session's own VAE for the time of one decode, and put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from diffusers import AutoencoderKLHunyuanVideo, AutoencoderKLHunyuanVideo15, AutoencoderKLWan

from wf_plugin_vae_tiling.tiles import Pair, Tiles

CLASSES = (AutoencoderKLHunyuanVideo, AutoencoderKLHunyuanVideo15, AutoencoderKLWan)
SIDES = ("height", "width")


def takes_sizes(vae: Any) -> bool:
    """Whether this VAE's tiles are those of the request (Cosmos), or its own (HunyuanVideo)."""
    return isinstance(vae, AutoencoderKLWan)


def attributes(vae: Any, size: Pair, stride: Pair) -> dict[str, Any]:
    """The attributes to decode in tiles with: where the VAE takes sizes, also these, in pixels."""
    if not takes_sizes(vae):
        return {"use_tiling": True}
    pixels = vae.spatial_compression_ratio
    sizes = {f"tile_sample_min_{side}": pixels * n for side, n in zip(SIDES, size, strict=True)}
    strides = {f"tile_sample_stride_{side}": pixels * n for side, n in zip(SIDES, stride, strict=True)}
    return {"use_tiling": True, **sizes, **strides}


def own_tiles(vae: Any) -> Tiles:
    """The tiles that the VAE's attributes mean, as its ``tiled_decode`` computes them."""
    factor = vae.spatial_compression_ratio
    pixels = _pair(vae, "tile_sample_min_{}")
    if isinstance(vae, AutoencoderKLHunyuanVideo15):
        size = _pair(vae, "tile_latent_min_{}")
        kept = 1 - vae.tile_overlap_factor
        return Tiles(size, (int(size[0] * kept), int(size[1] * kept)))
    steps = _pair(vae, "tile_sample_stride_{}")
    return Tiles(
        (pixels[0] // factor, pixels[1] // factor),
        (steps[0] // factor, steps[1] // factor),
    )


def misfits(vae: Any) -> Iterator[str]:
    """Why the VAE's own tiles and what it keeps of each would not fit together: the video would be shifted, or have
    another size, without an error.
    """
    factor, tiles = vae.spatial_compression_ratio, own_tiles(vae)
    pixels = _pair(vae, "tile_sample_min_{}")
    if isinstance(vae, AutoencoderKLHunyuanVideo15):
        steps: Pair = tuple(n - int(n * vae.tile_overlap_factor) for n in pixels)
    else:
        steps = _pair(vae, "tile_sample_stride_{}")
    for i, side in enumerate(SIDES):
        size, stride = tiles.size[i], tiles.stride[i]
        if size * factor != pixels[i] or stride * factor != steps[i] or not 0 < stride <= size:
            yield (
                f"the {side} of this VAE's own tiles does not fit its factor of {factor}: {size} latents every "
                f"{stride} are decoded, and {steps[i]} of {pixels[i]} pixels are kept; load the VAE again, or call "
                "its enable_tiling() with multiples of the factor and disable_tiling() after it"
            )


@contextmanager
def having(vae: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """The VAE with these attributes, which it has already, until the end of the block."""
    before = {name: getattr(vae, name) for name in values}
    for name, value in values.items():
        setattr(vae, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(vae, name, value)


def _pair(vae: Any, name: str) -> Pair:
    return int(getattr(vae, name.format("height"))), int(getattr(vae, name.format("width")))
