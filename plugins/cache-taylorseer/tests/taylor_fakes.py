"""A model of three blocks with their seams, whose branches a test chooses, and the two techniques around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from wf_core.api import Site
from wf_core.testing import CacheDriver
from wf_plugin_cache_taylorseer.blocks import BlockTaylorSeer
from wf_plugin_cache_taylorseer.stack import TaylorSeer

KINDS = ("taylorseer", "blocktaylorseer")
ROLES = {"self": ("attn1", "norm1"), "cross": ("attn2", "norm2"), "ffn": ("ffn", "norm3")}
BLOCKS = 3


def vector(name: str) -> dict[str, Any]:
    rows = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())["vectors"]
    return next(row for row in rows if row["id"] == name)


def cache(kind: str, every: int = 4, order: int = 1, first: int = 0, last: int = 1) -> Any:
    """Either technique with the same steps: one in ``every``, and the ``first`` and ``last`` ones."""
    if kind == "taylorseer":
        return TaylorSeer(every, order, first, last)
    return BlockTaylorSeer((True, *[False] * (every - 1)), order, first, last)


class Driver(CacheDriver):
    """A model of blocks whose branch gives ``output(index, role, y)`` and is added with ``gate(index, role)``.

    ``norms`` and ``branches`` count what the last call really ran. Each branch is given ``text`` tokens beside those of
    the stack, as in a model of two streams.
    """

    def __init__(self, technique: Any, blocks: int = BLOCKS) -> None:
        super().__init__(technique, [Block(self, index) for index in range(blocks)])
        self.index = 0
        self.norms = self.branches = self.text = 0
        self.output: Callable[[int, str, torch.Tensor], torch.Tensor] = changing
        self.gate: Callable[[int, str], float] = lambda index, role: 1.0
        self.raise_at: tuple[int, int] | None = None

    def call(self, index: int, value: torch.Tensor | None = None, **changes: Any) -> torch.Tensor:
        self.index = index
        self.norms = self.branches = 0
        return super().call(index, value, **changes)


def changing(index: int, role: str, y: torch.Tensor) -> torch.Tensor:
    """A branch that looks at its input, and at the step."""
    return y * (0.1 + 0.01 * index) + len(role)


class Block:
    def __init__(self, driver: Driver, index: int) -> None:
        self._driver = driver
        self._index = index

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        driver, path = self._driver, f"blocks.{self._index}"
        if driver.raise_at == (driver.index, self._index):
            raise RuntimeError("injected")
        handlers = driver.cache.handlers()
        for role, (branch, norm) in ROLES.items():
            y = self._through(handlers, "norm_modulate", f"{path}.{norm}", role, self._norm)(
                torch.sin, x, 1, 0
            )
            y = torch.cat([y, y.new_ones(y.shape[0], driver.text, y.shape[2])], dim=1)
            out = self._through(handlers, "branch", f"{path}.{branch}", role, self._branch(role))(y)
            x = x + out[:, : x.shape[1]] * driver.gate(driver.index, role)
        return x

    def _norm(self, norm: Any, x: torch.Tensor, scale: Any, shift: Any) -> torch.Tensor:
        self._driver.norms += 1
        return norm(x) * scale + shift

    def _branch(self, role: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def compute(y: torch.Tensor) -> torch.Tensor:
            self._driver.branches += 1
            return self._driver.output(self._driver.index, role, y)

        return compute

    def _through(self, handlers: Any, seam: str, path: str, role: str, stock: Any) -> Any:
        if seam not in handlers:
            return stock
        site = Site(seam, root="transformer", path=path, index=self._index, role=role)
        return lambda *args: handlers[seam](stock, site, *args)
