"""Spatial tiling: overlapping tiles of latents are decoded one by one and averaged where they meet.

Weighted accumulation as in DiffSynth-Studio's Wan VAE: each tile is multiplied by a mask with linear slopes on its
inner edges, ``video = sum(mask * tile) / sum(mask)``. Done on pixels around the next decoder, so that it also holds for
VAEs that unpatchify at the end and for any way of decoding a tile. The sums are fp32: up to their rounding, the order
of the tiles does not matter.

Approximate by nature: convolutions see zeros at a tile's edge, and the attention in the middle of the decoder sees the
tile only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import torch

from wf_core.api import BadInput, RunView
from wf_plugin_vae_wan.decoder import Decode, WanDecoder, stock_tiling
from wf_plugin_vae_wan.tiles import Span, ramp, spans

Pair = tuple[int, int]


class TiledDecoder(WanDecoder):
    """``size`` and ``stride`` are in latents, height then width."""

    def __init__(self, size: Pair, stride: Pair) -> None:
        for axis, tile, step in zip(("height", "width"), size, stride, strict=True):
            if not 0 < step <= tile:
                raise BadInput(
                    f"vae_tile_stride {step} is above vae_tile_size {tile} in {axis}: rows between two tiles would "
                    f"be lost; use a stride from 1 to {tile}"
                )
        self._size = size
        self._stride = stride
        self._last: dict[str, object] = {}

    def check(self, run: RunView) -> Iterable[str]:
        yield from super().check(run)
        yield from stock_tiling(self.vae)

    def begin(self, run: RunView) -> None:
        self._last = {}

    def decode_all(self, inner: Decode, latents: torch.Tensor) -> torch.Tensor:
        rows, columns = (
            spans(length, tile, step)
            for length, tile, step in zip(latents.shape[-2:], self._size, self._stride, strict=True)
        )
        self._note(latents, rows, columns)
        self.counters.add("tiles", len(rows) * len(columns))
        if len(rows) * len(columns) == 1:
            return inner(latents)
        video = self._accumulate(inner, latents, rows, columns)
        self.counters.add("successes")
        return video

    def _accumulate(
        self, inner: Decode, latents: torch.Tensor, rows: list[Span], columns: list[Span]
    ) -> torch.Tensor:
        total: torch.Tensor | None = None
        for row, column in product(rows, columns):
            tile = inner(latents[..., row.start : row.end, column.start : column.end])
            if total is None:
                scale = tile.shape[-1] // (column.end - column.start)
                precise = torch.promote_types(tile.dtype, torch.float32)
                area = [scale * length for length in latents.shape[-2:]]
                total = torch.zeros((*tile.shape[:3], *area), dtype=precise, device=tile.device)
                weight = torch.zeros(area, dtype=precise, device=tile.device)
            mask = self._mask(row, column, scale, weight)
            place = (
                ...,
                slice(row.start * scale, row.end * scale),
                slice(column.start * scale, column.end * scale),
            )
            total[place].addcmul_(tile.to(precise), mask)
            weight[place] += mask
        assert total is not None
        return total.div_(weight).clamp_(-1.0, 1.0).to(tile.dtype)

    def _mask(self, row: Span, column: Span, scale: int, like: torch.Tensor) -> torch.Tensor:
        """``[H, W]`` in pixels: the smaller of the two slopes, so that corners fall off like edges."""
        down, across = (
            ramp((span.end - span.start) * scale, (tile - step) * scale, span, like.dtype, like.device)
            for span, tile, step in zip((row, column), self._size, self._stride, strict=True)
        )
        return torch.minimum(down[:, None], across[None, :])

    def _note(self, latents: torch.Tensor, rows: list[Span], columns: list[Span]) -> None:
        height, width = latents.shape[-2:]
        decoded = sum(row.end - row.start for row in rows) * sum(
            column.end - column.start for column in columns
        )
        self._last = {
            "grid": [len(rows), len(columns)],
            "tile_latents": list(self._size),
            "stride_latents": list(self._stride),
            "decoded_area": round(decoded / (height * width), 3),
        }

    def evidence(self) -> Mapping[str, object]:
        """Grid of the last decode, and the latents decoded per latent of the video: the price in work."""
        return self._last
