"""What the stock models and pipelines are, as far as more than one module here must know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ROOT = "transformer"
"""The component name of a pipeline's one denoiser."""

PIPELINE_UNIT = 16
"""The HunyuanVideo pipelines refuse a height or width that is not a multiple of 16; those of 1.5 check nothing."""

BLOCK_LISTS = ("transformer_blocks", "single_transformer_blocks")
"""The block lists in the order of computation; 1.5 has the first alone."""


def is_15(root: Any) -> bool:
    """Whether the root is a HunyuanVideo-1.5 transformer, which has no pooled text and no single-stream blocks."""
    return hasattr(root, "time_embed")


def blocks_of(root: Any) -> Iterator[tuple[Any, str, int]]:
    """Every block, its path below the root, and its number over both lists."""
    index = 0
    for name in BLOCK_LISTS:
        for place, block in enumerate(getattr(root, name, ())):
            yield block, f"{name}.{place}", index
            index += 1
