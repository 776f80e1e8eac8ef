"""The caches as the host builds them, and models of a few lines whose blocks a test sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import wf_plugin_cache_blocks as plugin
from wf_core.api import Facts
from wf_core.testing import CacheDriver, Manifest

HERE = Path(__file__).parent
MANIFEST = Path(plugin.__file__).parent / "wf-plugin.toml"

VARIANTS: dict[str, dict[str, Any]] = {
    "firstblock": {},
    "dualblock": {"front_blocks": 2, "tail_blocks": 1},
    "dynamicblock": {},
    "dynamicblock each": {"decide": "each-block"},
}
"""Every way of deciding, on a model of five blocks. The first word is the feature."""

LAYERS = 5


@cache
def vector(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "data" / "vectors.json").read_text())["vectors"][name]
    return found


@cache
def defaults(feature: str) -> dict[str, Any]:
    return {option.name: option.default for option in Manifest.load(MANIFEST).feature(feature).options}


def make(variant: str, threshold: float = 1e9, **options: Any) -> Any:
    """A cache that skips whatever it may, with no step computed for its place in the run, unless told otherwise."""
    feature = variant.split()[0]
    own = {"residual_diff_threshold": threshold, "first": 0, "last": 0, **VARIANTS.get(variant, {})}
    return plugin.wf_feature_cache(
        feature=feature, options={**defaults(feature), **own, **options}, facts=Facts()
    )


class Blocks:
    """Block ``k`` of the model adds ``f[k]`` to what it is given; a test may change ``f`` between calls."""

    def __init__(self, f: Sequence[Any]) -> None:
        self.f = list(f)

    def functions(self) -> list[Any]:
        return [lambda x, k=k: x + self.f[k] for k in range(len(self.f))]


class Curved:
    """Block ``k`` adds something that depends on what it is given, so that a wrong residual shows."""

    def __init__(self, layers: int = LAYERS) -> None:
        self.layers = layers

    def functions(self) -> list[Any]:
        return [lambda x, k=k: x + torch.tanh(x * (k + 1)) / (k + 2) for k in range(self.layers)]

    def dense(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.functions():
            x = block(x)
        return x


class Driver(CacheDriver):
    """The model may add ``hints[k]`` after block ``k``, outside of every block, as a VACE model does."""

    def __init__(self, cache: Any, model: Any = None, hints: dict[int, Any] | None = None) -> None:
        self.model = model if model is not None else Curved()
        self.hints = hints or {}
        functions = self.model.functions()
        super().__init__(cache, functions, facts=Facts.of({"model.blocks": len(functions)}, "test"))

    def _run_blocks(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            x = self._wrapped("block", self._counted(index, block), index)(x)
            if index in self.hints:
                x = x + self.hints[index]
        return x


def driver(variant: str, model: Any = None, threshold: float = 1e9, **options: Any) -> Driver:
    return Driver(make(variant, threshold, **options), model)


def warm_up(variant: str) -> int:
    """How many calls of a branch are computed before one can be skipped."""
    return 2 if variant == "dynamicblock" else 1


def value(seed: int = 0, batch: int = 1, tokens: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, 8, generator=g).to(dtype)
