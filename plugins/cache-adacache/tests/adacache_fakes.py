"""A model of three blocks whose watched self-attention a test chooses, and the reference vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from wf_core.api import Facts, Site
from wf_core.testing import CacheDriver
from wf_plugin_cache_adacache.cache import AdaCache
from wf_plugin_cache_adacache.settings import settle

VECTORS = {
    row["id"]: row
    for row in json.loads((Path(__file__).parent / "data" / "vectors.json").read_text(encoding="utf-8"))
}
FACTS = Facts.of({"model.layers": 3, "model.id": "own-wan"}, "test")
TWO = {"thresholds": (1.0,), "rates": (2,), "motion": False}
"""A book that skips every other step."""


def inputs(name: str) -> dict[str, Any]:
    return VECTORS[name]["inputs"]


def expected(name: str) -> dict[str, Any]:
    return VECTORS[name]["expected"]


class Driver(CacheDriver):
    """Three blocks that add ``bias`` each. What they show of their self-attention is ``signal`` ``[B, L, D]`` in the
    watched main block, and noise everywhere else: in other blocks, other roles, and a control block beside them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(AdaCache(settle(options, FACTS)), facts=FACTS)
        self.blocks = [self._block(index) for index in range(3)]
        self.signal: torch.Tensor | None = torch.ones(1, 2, 4)
        self.gate: torch.Tensor | None = None
        self.bias = 1.0

    def _block(self, index: int) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            noise = torch.randn_like(x)
            self._residual(x, noise, f"vace_blocks.{index}.attn1", index, "self")
            watched = self.signal if index == 1 and self.signal is not None else noise
            if not (index == 1 and self.signal is None):
                self._residual(x, watched, f"blocks.{index}.attn1", index, "self")
            self._residual(x, noise, f"blocks.{index}.attn2", index, "cross")
            self._residual(x, noise, f"blocks.{index}.ffn", index, "ffn")
            return x + self.bias

        return run

    def _residual(self, x: torch.Tensor, out: torch.Tensor, path: str, index: int, role: str) -> None:
        handler = self.cache.handlers()["gated_residual"]
        site = Site("gated_residual", "transformer", path, index, role)
        gate = self.gate if role == "self" else None
        stock = lambda x, out, gate: x + out * (1 if gate is None else gate)  # noqa: E731
        result = handler(stock, site, x, out, gate)
        assert torch.equal(result.nan_to_num(), stock(x, out, gate).nan_to_num()), "watching changes nothing"


def start(steps: int | tuple[float, ...], experts: tuple[str, ...] = (), **options: Any) -> Driver:
    """A driver in an open run."""
    driver = Driver(**options)
    driver.begin(driver.view(steps, experts))
    return driver
