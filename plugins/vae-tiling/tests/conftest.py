"""What the tests share: a small VAE of every class that is tiled, and its decode with the feature and by diffusers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo, AutoencoderKLHunyuanVideo15, AutoencoderKLWan

from wf_core.api import Site, seeded
from wf_core.testing import copy_module
from wf_plugin_vae_tiling.decoder import TiledDecoder

WAN = {"z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "temperal_downsample": [False, True, True]}
MEAN = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
WIDE = {"decoder_base_dim": 8, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}
HUNYUAN = {"latent_channels": 4, "layers_per_block": 1}
BUILD: dict[str, tuple[Any, dict[str, Any]]] = {
    "wan": (AutoencoderKLWan, {**WAN, **MEAN, "base_dim": 3}),
    "wan-2.2": (
        AutoencoderKLWan,
        {**WAN, **MEAN, **WIDE, "base_dim": 8, "is_residual": True, "patch_size": 2},
    ),
    "hunyuan": (
        AutoencoderKLHunyuanVideo,
        {**HUNYUAN, "block_out_channels": (4, 4, 4, 4), "norm_num_groups": 2},
    ),
    "hunyuan-1.5": (AutoencoderKLHunyuanVideo15, {**HUNYUAN, "block_out_channels": (8, 8, 8, 8, 8)}),
}
SIZE, STRIDE = (4, 5), (3, 4)
OWN: dict[str, dict[str, Any]] = {
    "hunyuan": {
        "tile_sample_min_height": 32,
        "tile_sample_min_width": 40,
        "tile_sample_stride_height": 24,
        "tile_sample_stride_width": 32,
    },
    "hunyuan-1.5": {
        "tile_sample_min_height": 64,
        "tile_sample_min_width": 64,
        "tile_latent_min_height": 4,
        "tile_latent_min_width": 4,
    },
}
"""Tiles that the VAEs of HunyuanVideo keep as their own here: theirs of 256 pixels would take large latents."""


@cache
def build(kind: str) -> Any:
    """The same VAE for all tests, which use copies of it only."""
    model, config = BUILD[kind]
    return seeded(model, **config)


def own(kind: str) -> Any:
    """A copy to change, with small tiles of its own where the class has them."""
    vae = copy.deepcopy(build(kind))
    if kind in OWN:
        vae.enable_tiling(**OWN[kind])
        vae.disable_tiling()
    return vae


class Tally:
    """Counters as the host gives them, kept where a test can look."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount


def tiled(vae: Any, size: Any = None, stride: Any = None) -> TiledDecoder:
    """The technique on a VAE, in a run."""
    part = TiledDecoder(size, stride)
    part.counters = Tally()  # type: ignore[assignment]
    part.prepare({"vae": vae})
    part.begin(None)  # type: ignore[arg-type]
    return part


@torch.no_grad()
def stock(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """The VAE's own decode."""
    video: torch.Tensor = vae.decode(latents, return_dict=False)[0]
    return video


def decode(part: TiledDecoder, vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """The stock decode with the technique around it, as the seam puts it."""
    call: Callable[..., torch.Tensor] = partial(part.handlers()["vae.decode"], partial(stock, vae))
    return call(Site("vae.decode", root="vae"), latents)


def by_diffusers(kind: str, latents: torch.Tensor, size: Any = SIZE, stride: Any = STRIDE) -> torch.Tensor:
    """diffusers' tiled decode of a deep copy, with the same tiles."""
    vae = own(kind)
    if kind in OWN:
        vae.enable_tiling()
        return stock(vae, latents)
    pixels = vae.spatial_compression_ratio
    vae.enable_tiling(*(pixels * n for n in (*size, *stride)))
    return stock(vae, latents)


def noise(frames: int, height: int, width: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 4, frames, height, width, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def small() -> SimpleNamespace:
    """The builders above, by short names: tests are imported by path and cannot import this file."""
    torch.set_num_threads(1)
    return SimpleNamespace(
        build=build,
        own=own,
        tiled=tiled,
        stock=stock,
        decode=decode,
        by_diffusers=by_diffusers,
        noise=noise,
        copy=copy_module,
        takes=lambda kind: (None, None) if kind in OWN else (SIZE, STRIDE),
    )
