"""Tiled decoding as diffusers does it: overlapping tiles, blended linearly where they meet.

Bit-identical to the stock VAE after ``enable_tiling`` with the same numbers. Approximate by nature: convolutions see
the edge of a tile and not what is beyond it, and the attention and norms in the decoder see one tile only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from wf_core.api import BadInput, RunView, VaeDecoder
from wf_plugin_vae_tiling import stock
from wf_plugin_vae_tiling.calls import Calls, noted
from wf_plugin_vae_tiling.tiles import Pair, Tiles

SIZE = (32, 32)
"""Latents; at factor 8 the 256 pixels of diffusers."""


class TiledDecoder(VaeDecoder):
    """``size`` and ``stride`` are in latents, height then width, for a VAE that takes them. None is for the
    defaults: tiles of 32 by 32, and three quarters of the size from one to the next, as diffusers has it.
    """

    def __init__(self, size: Sequence[int] | None = None, stride: Sequence[int] | None = None) -> None:
        self._given = size is not None or stride is not None
        self._size = _pair(size or SIZE)
        self._stride = _pair(stride) if stride else _three_quarters(self._size)
        for side, tile, step in zip(stock.SIDES, self._size, self._stride, strict=True):
            if not 0 < step <= tile:
                raise BadInput(
                    f"vae_tile_stride {step} is above vae_tile_size {tile} in {side}: rows between two tiles would "
                    f"be lost; use a stride from 1 to {tile}"
                )
        self._vae: Any = None
        self._last: dict[str, object] = {}

    def prepare(self, components: Mapping[str, Any]) -> None:
        self._vae = components.get("vae")

    def close(self) -> None:
        self._vae = None

    def check(self, run: RunView) -> Iterable[str]:
        vae = self._vae
        if not isinstance(vae, stock.CLASSES):
            known = ", ".join(kind.__name__ for kind in stock.CLASSES)
            yield f"the VAE is {type(vae).__name__}, whose tiling is not known; known are {known}"
            return
        if vae.use_tiling:
            yield (
                "this VAE has diffusers' own tiling switched on, for encoding too, so that there is nothing to add; "
                "call vae.disable_tiling() to have this feature tile, or leave vae_tiling out"
            )
        if stock.takes_sizes(vae):
            return
        if self._given:
            yield f"{type(vae).__name__} keeps its own tiles: leave vae_tile_size and vae_tile_stride out"
        yield from stock.misfits(vae)

    def begin(self, run: RunView) -> None:
        self._last = {}

    def decode(self, inner: Callable[[torch.Tensor], torch.Tensor], latents: torch.Tensor) -> torch.Tensor:
        self.counters.add("attempts")
        vae = self._vae
        with (
            stock.having(vae, stock.attributes(vae, self._size, self._stride)),
            noted(vae.decoder) as calls,
        ):
            tiles = stock.own_tiles(vae)
            video = inner(latents)
        self._judge(latents, tiles, calls)
        return video

    def _judge(self, latents: torch.Tensor, tiles: Tiles, calls: Calls) -> None:
        """What began is what counts: a decode of which no tile was seen has not been tiled, whatever was asked for."""
        frames, height, width = latents.shape[2:]
        decoded = calls.tiles(height, width)
        self._last = {
            "grid": list(tiles.grid(height, width)),
            "tile_latents": list(tiles.size),
            "stride_latents": list(tiles.stride),
            "decoded_per_latent": round(calls.latents / (frames * height * width), 3),
        }
        if decoded < 2:
            self._last["no_effect"] = _why_not(tiles, height, width)
            return
        self.counters.add("tiles", decoded)
        self.counters.add("successes")

    def evidence(self) -> Mapping[str, object]:
        """Of the last decode: the grid over one picture, the tiles, and the latents decoded per latent of the video,
        which are the price in work; why nothing was tiled where that is so.
        """
        return self._last


def _why_not(tiles: Tiles, height: int, width: int) -> str:
    if tiles.grid(height, width) == (1, 1):
        return f"one tile of {tiles.size[0]} by {tiles.size[1]} latents covers the {height} by {width} of the video"
    return "the VAE's decoder was not called tile by tile: something else decoded in its place"


def _three_quarters(size: Pair) -> Pair:
    height, width = (max(1, 3 * side // 4) for side in size)
    return height, width


def _pair(numbers: Sequence[int]) -> Pair:
    height, width = numbers
    return height, width
