"""The calls of a VAE's decoder during one decode: what was really decoded, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Calls:
    """``begun`` has the height and width in latents of each tile whose decoding began; ``latents`` counts positions."""

    begun: list[tuple[int, int]] = field(default_factory=list)
    latents: int = 0

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One call with latents ``[B, C, T, H, W]``. The decoder of Wan takes a tile frame by frame, and is told which
        frame is the first; the others take all frames that belong together in one call.
        """
        hidden: torch.Tensor = args[0]
        frames, height, width = hidden.shape[2:]
        self.latents += frames * height * width
        if kwargs.get("first_chunk", True):
            self.begun.append((height, width))

    def tiles(self, height: int, width: int) -> int:
        """How many began of which each is smaller than the area."""
        return sum(size != (height, width) for size in self.begun)


@contextmanager
def noted(decoder: nn.Module) -> Iterator[Calls]:
    """The calls of the decoder of a session's own VAE, by a hook that is gone at the end of the block."""
    calls = Calls()
    handle = decoder.register_forward_pre_hook(calls.note, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()
