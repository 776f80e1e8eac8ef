"""The tiles of diffusers' own tiled decode, in latents. Plain numbers; nothing here knows of a VAE."""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[int, int]
"""Height, then width."""


@dataclass(frozen=True)
class Tiles:
    """Tiles of ``size`` every ``stride``, both in latents."""

    size: Pair
    stride: Pair

    def grid(self, height: int, width: int) -> Pair:
        """Rows and columns of tiles over an area of latents; (1, 1) where one tile covers it.

        The stock loop starts a tile at every multiple of the stride, also where the tile before it reaches the end.
        """
        if height <= self.size[0] and width <= self.size[1]:
            return 1, 1
        rows, columns = (
            len(range(0, length, step)) for length, step in zip((height, width), self.stride, strict=True)
        )
        return rows, columns
