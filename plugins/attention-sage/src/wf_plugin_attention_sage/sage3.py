"""SageAttention 3 (arXiv 2505.11594): attention in 4-bit floats, on consumer Blackwell alone.

What ``sageattn3_blackwell`` does not do is done around it. It ignores masks and scales: calls with a mask are refused,
and the scale is put into the query where the head is padded. It writes the keys: they are copied. It knows no grouped
heads: their queries become one longer sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from wf_lib_attention import grouped
from wf_lib_attention.caching import Recipe
from wf_lib_attention.call import Call
from wf_lib_attention.limits import Limits
from wf_lib_attention.packaged import PackageProvider
from wf_lib_attention.packages import only


class Sage3(PackageProvider):
    """The 4-bit kernel, for attention over at least ``min_tokens`` tokens on both sides.

    Cross-attention is not claimed at all: text is always short.
    """

    distribution, module, function = "sageattn3", "sageattn3", "sageattn3_blackwell"
    approximate = True
    loosest = None  # of so few tokens nobody has measured what is right in 4 bit
    limits = Limits(
        "sage3",
        arch=lambda capability: capability in ((12, 0), (12, 1)),
        arch_words="12.0 or 12.1",
        head=lambda size, capability: size <= 128,
        head_words="up to 128",
        captured=False,
    )

    def __init__(
        self, head_dim: int = 128, dtype: torch.dtype = torch.bfloat16, min_tokens: int = 4096
    ) -> None:
        super().__init__(head_dim, dtype)
        self.limits = replace(type(self).limits, least_tokens=min_tokens)

    def roles(self) -> Collection[str]:
        return ("self", "joint")

    def bind(self, function: Callable[..., Any], call: Call) -> tuple[Recipe, tuple[str, ...]]:
        steps = ["keys copied"]
        kernel: grouped.Kernel = partial(_kernel, function)
        if call.grouped:
            steps.append("key heads kept, their queries made one sequence")
            kernel = partial(grouped.by_fold, kernel)
        width = 64 if call.head_dim <= 64 else 128
        if width != call.head_dim:
            steps.append(f"head size {call.head_dim} padded to {width}")
        return partial(_attend, kernel, width - call.head_dim), tuple(steps)


def _kernel(
    function: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """``[B, H, L, D]`` in and out, on keys of its own: the package subtracts their mean where they lie."""
    return only(function(query, key.clone(), value, is_causal=False))


def _attend(
    kernel: grouped.Kernel,
    extra: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """BLHD in and out. The package scales by the padded head size: the query makes up for that, to its rounding."""
    size = query.shape[-1]
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    if extra:
        query = query * ((size + extra) / size) ** 0.5
        query, key, value = (F.pad(x, (0, extra)) for x in (query, key, value))
    return kernel(query, key, value, None)[..., :size].transpose(1, 2)
