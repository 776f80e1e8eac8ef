"""SageAttention 1 and 2 (arXiv 2410.02367, 2411.10958): scores from 8-bit integers, from one package in two lines.

Both take ``[B, L, H, D]`` under the name "NHD" and share key heads themselves. ``sageattn`` swallows keywords that it
does not know without a word, so only those are given that are in its signature, and a call with a mask is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from wf_core.api import Ineligible
from wf_lib_attention.caching import Recipe
from wf_lib_attention.call import Call
from wf_lib_attention.limits import Limits
from wf_lib_attention.packaged import PackageProvider
from wf_lib_attention.packages import function_of, keywords, only, parameters_of, require_keyword

_ARCHITECTURES_2 = ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0), (12, 1))
_TRITON = "sageattn_qk_int8_pv_fp16_triton"
_BLOCK = 64
_MOST_ABSENT = 5e-3
"""The most of a softmax that keys may get which are not there; what 8-bit scores cost is more than twice this."""


class SageProvider(PackageProvider):
    """What the two have in common."""

    distribution, module, function = "sageattention", "sageattention", "sageattn"
    approximate = True

    def given(self, function: Callable[..., Any], call: Call) -> dict[str, Any]:
        """The keywords of a call. Layout and scale are not optional: without them the result would be another."""
        for name in ("tensor_layout", "sm_scale"):
            require_keyword(function, name, f"{self.module}.{self.function}")
        return keywords(function, tensor_layout="NHD", is_causal=False, sm_scale=call.head_dim**-0.5)


class Sage1(SageProvider):
    """The Triton kernel: ``sageattn`` of 1.x, and in 2.x the function that still has it.

    That of 1.x takes the mean off the keys in place. Here it is taken off a copy beforehand, by the same operation, and
    the package is told not to: same result, and the caller's keys stay as they are.

    The kernel of 1.x takes keys in blocks of 64 and gives the ones that the last block lacks a score of 0 instead of
    none. Without their mean the scores of the keys average 0, so that the n absent among N get at most n / (N + n) of
    the weight: a call where that is more than 0.5 % is refused.
    """

    limits = Limits(
        "sage1",
        arch=lambda capability: capability >= (8, 0),
        arch_words="8.0 or later",
        head=lambda size, capability: size in (64, 96, 128),
        head_words="64, 96 and 128",
        least="1.0.6",
        captured=False,
    )

    def bind(self, function: Callable[..., Any], call: Call) -> tuple[Recipe, tuple[str, ...]]:
        if is_second_line(function):
            triton = function_of(self.module, _TRITON)
            return partial(_attend, triton, self.given(triton, call)), (f"{_TRITON} of the 2.x package",)
        require_keyword(function, "smooth_k", "sageattention.sageattn")
        refuse_absent_keys(call.lengths[1])
        given = {**self.given(function, call), "smooth_k": False}
        return partial(_attend_smoothed, function, given), ("mean taken off a copy of the keys",)


class Sage2(SageProvider):
    """``sageattn`` of 2.x, which chooses a kernel by the architecture and pads other head sizes to 64 and 128."""

    limits = Limits(
        "sage2",
        arch=lambda capability: capability in _ARCHITECTURES_2,
        arch_words=", ".join(f"{major}.{minor}" for major, minor in _ARCHITECTURES_2),
        head=lambda size, capability: size <= 128,
        head_words="up to 128",
        least="2.1.1",
        captured=False,
    )

    def bind(self, function: Callable[..., Any], call: Call) -> tuple[Recipe, tuple[str, ...]]:
        if not is_second_line(function):
            raise Ineligible(
                "the sageattention that is imported is of the 1.x line, whose only kernel is sage1's"
            )
        return partial(_attend, function, self.given(function, call)), ()


def refuse_absent_keys(keys: int) -> None:
    """Raises Ineligible where the kernel of 1.x would count too many keys that are not there."""
    absent = -keys % _BLOCK
    share = absent / max(1, keys + absent)
    if share > _MOST_ABSENT:
        raise Ineligible(
            f"the kernel of sageattention 1.x counts keys up to a multiple of {_BLOCK}: with {keys} keys, {absent} "
            f"that are not there could get {share:.1%} of the weight, more than {_MOST_ABSENT:.1%}"
        )


def is_second_line(function: Callable[..., Any]) -> bool:
    """Whether ``sageattn`` is that of 2.x, told by its arguments: it can return the log-sum-exp, 1.x cannot."""
    known = parameters_of(function)
    return known is not None and "return_lse" in known


def _attend(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    return only(function(query, key, value, **given))


def _attend_smoothed(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    return only(function(query, key - key.mean(dim=1, keepdim=True), value, **given))
