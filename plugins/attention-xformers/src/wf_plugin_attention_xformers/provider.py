"""``xformers.ops.memory_efficient_attention``: masks as a bias, grouped heads in its form with five axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from wf_lib_attention import masks
from wf_lib_attention.caching import Recipe
from wf_lib_attention.call import Call
from wf_lib_attention.limits import HALF, Limits
from wf_lib_attention.machine import Machine
from wf_lib_attention.packaged import PackageProvider
from wf_lib_attention.packages import only

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""``attention(query, key, value, bias)``: BMHK in and out, ``bias`` ``[B, H, Lq, Lk]``."""


class XformersLimits(Limits):
    """bfloat16 is a matter of the device here: the kernels of old cards take float16 and float32 only."""

    def why_not(self, call: Call, machine: Machine, version: str = "") -> str:
        reason = super().why_not(call, machine, version)
        if not reason and call.dtype is torch.bfloat16 and machine.capability < (8, 0):
            return f"xformers needs compute capability 8.0 for bfloat16, this device has {machine.version}"
        return reason


class Xformers(PackageProvider):
    """The package chooses among its kernels; without one for the call it raises, and says for each what is missing."""

    distribution, module, function = "xformers", "xformers.ops", "memory_efficient_attention"
    limits = XformersLimits(
        "xformers",
        arch=lambda capability: capability >= (6, 0),
        arch_words="6.0 or later",
        dtypes=(*HALF, torch.float32),
        least="0.0.29",
        masks=True,
    )

    def bind(self, function: Callable[..., Any], call: Call) -> tuple[Recipe, tuple[str, ...]]:
        steps = []
        attention: Attention = partial(_call, function, call.head_dim**-0.5)
        if call.grouped:
            steps.append("key heads shared by views")
            attention = partial(_five_axes, attention)
        extra = -call.head_dim % (16 // call.dtype.itemsize)
        if extra:
            steps.append(f"head size {call.head_dim} padded to {call.head_dim + extra}")
            attention = partial(_padded, attention, extra)
        if call.mask is None:
            return attention, tuple(steps)
        return partial(_masked, attention), (*steps, "boolean mask turned into a bias")


def _call(
    function: Callable[..., Any],
    scale: float,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    return only(function(query, key, value, attn_bias=bias, scale=scale))


def _five_axes(
    attention: Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """BMHK -> BMGHK: one group per key head, the key head a view with stride 0 over the heads of its group."""
    groups = key.shape[2]
    heads = query.shape[2] // groups
    key, value = (x.unsqueeze(3).expand(-1, -1, -1, heads, -1) for x in (key, value))
    query = query.view(*query.shape[:2], groups, heads, query.shape[3])
    if bias is not None:
        bias = bias.view(bias.shape[0], groups, heads, *bias.shape[2:])
    return attention(query, key, value, bias).flatten(2, 3)


def _padded(
    attention: Attention,
    extra: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """D padded with zeros, which leaves every score and every kept column as they were; the scale stays that of D."""
    size = query.shape[-1]
    query, key, value = (F.pad(x, (0, extra)) for x in (query, key, value))
    return attention(query, key, value, bias)[..., :size]


def _masked(
    attention: Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """The package wants the bias in full shape; rows in memory begin at multiples of 8, axes of size 1 are views."""
    assert mask is not None
    mask = masks.lift(mask)
    bias = masks.additive(mask, query.dtype, key.shape[1], multiple=8)
    bias = bias.expand(query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    out = attention(query, key, value, bias)
    return masks.zero_empty_rows(out.transpose(1, 2), mask).transpose(1, 2)
