"""FlashAttention (Dao, arXiv 2307.08691; Shah et al., arXiv 2407.08608), each from its own package.

All three take ``[B, L, H, D]`` as it comes at the seam and share key heads themselves. Called without a mask and
without causality, they compute what the stock model does, to the rounding of a flash kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from wf_lib_attention.caching import Recipe
from wf_lib_attention.call import Call
from wf_lib_attention.limits import Limits
from wf_lib_attention.packaged import PackageProvider
from wf_lib_attention.packages import keywords, only, require_keyword

_HEADS = "multiples of 8 up to 256"


def _up_to_256(size: int, capability: tuple[int, int]) -> bool:
    return size <= 256 and size % 8 == 0


def _of_flash4(size: int, capability: tuple[int, int]) -> bool:
    """flash-attn-4 has kernels between 128 and 256 for Hopper only (``_validate_head_dims`` of its interface.py)."""
    return _up_to_256(size, capability) and (size <= 128 or size == 256 or capability < (10, 0))


class FlashProvider(PackageProvider):
    """``flash_attn_func`` of one of the packages; they differ in what they return and in arguments not used here."""

    function = "flash_attn_func"

    def bind(self, function: Callable[..., Any], call: Call) -> tuple[Recipe, tuple[str, ...]]:
        require_keyword(function, "softmax_scale", f"{self.module}.{self.function}")
        given = keywords(function, softmax_scale=call.head_dim**-0.5, causal=False)
        return partial(_attend, function, given), ()


def _attend(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    return only(function(query, key, value, **given))


class Flash2(FlashProvider):
    """flash-attn 2. A wheel may lack the kernels of sm100 and later; the call at open shows that."""

    distribution, module = "flash-attn", "flash_attn"
    limits = Limits(
        "flash2",
        arch=lambda capability: capability >= (8, 0),
        arch_words="8.0 or later",
        head=_up_to_256,
        head_words=_HEADS,
        least="2.6.3",
    )


class Flash3(FlashProvider):
    """FlashAttention 3, from the folder hopper of flash-attention. Older betas return the log-sum-exp as well."""

    distribution, module = "flash_attn_3", "flash_attn_interface"
    limits = Limits(
        "flash3",
        arch=lambda capability: capability == (9, 0),
        arch_words="9.0 and no other",
        head=_up_to_256,
        head_words=_HEADS,
    )


class Flash4(FlashProvider):
    """flash-attn-4, compiled by CuTe at the first call of a kind. Returns the log-sum-exp as well, or None for it."""

    distribution, module = "flash-attn-4", "flash_attn.cute"
    compiles = True
    limits = Limits(
        "flash4",
        arch=lambda capability: (9, 0) <= capability < (12, 0),
        arch_words="9, 10 or 11",
        head=_of_flash4,
        head_words=f"{_HEADS} on Hopper, and elsewhere up to 128 or 256 itself",
    )


PROVIDERS: Mapping[str, type[FlashProvider]] = {"flash2": Flash2, "flash3": Flash3, "flash4": Flash4}
"""Feature name -> provider."""
