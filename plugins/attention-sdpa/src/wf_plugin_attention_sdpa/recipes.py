"""From an operator and a call's shape to a plain function: what is needed is decided once, then only done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from wf_lib_attention import grouped, masks
from wf_lib_attention.caching import Recipe
from wf_lib_attention.call import Call, packed
from wf_lib_attention.grouped import Kernel
from wf_plugin_attention_sdpa.operators import Operator

Count = Callable[[str], None]


def build(operator: Operator, call: Call, count: Count) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe, and in words what it does beside calling the operator. ``count`` counts grouped calls."""
    kernel = operator.bind(call, call.head_dim**-0.5 if _padding(operator, call) else None)
    steps: list[str] = []
    kernel = _with_groups(kernel, operator, call, count, steps)
    kernel = _with_layout(kernel, operator, call, steps)
    kernel = _with_padding(kernel, operator, call, steps)
    if call.mask is None:
        return partial(_dense, kernel), tuple(steps)
    steps.append("boolean mask turned into a bias")
    align = 8 if operator.aligned else 1
    bias = partial(
        masks.additive, dtype=call.dtype, keys=call.lengths[1], blocked=operator.blocked, multiple=align
    )
    return partial(_masked, kernel, bias, operator.zeroes), tuple(steps)


def _dense(
    kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return kernel(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), None).transpose(1, 2)


def _masked(
    kernel: Kernel,
    bias: Callable[[torch.Tensor], torch.Tensor],
    zeroes: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    mask = masks.lift(mask)
    out = kernel(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), bias(mask))
    return (out if zeroes else masks.zero_empty_rows(out, mask)).transpose(1, 2)


def _with_groups(kernel: Kernel, operator: Operator, call: Call, count: Count, steps: list[str]) -> Kernel:
    if not call.grouped or operator.groups == "own":
        return kernel
    viewed = operator.groups == "view" and grouped.is_shared(call.mask)
    serve = grouped.by_view if viewed else grouped.by_copy
    steps.append("key heads shared by views" if viewed else "key heads repeated")
    name = "grouped_calls" if viewed else "expansions"
    inner = kernel

    def counted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        count(name)
        return serve(inner, q, k, v, bias)

    return counted


def _with_layout(kernel: Kernel, operator: Operator, call: Call, steps: list[str]) -> Kernel:
    """Copies where the operator would read wrong memory instead of raising: none of them is an error in torch."""
    reason = _layout_reason(operator, call)
    if not reason:
        return kernel
    steps.append(f"inputs made contiguous ({reason})")
    return lambda q, k, v, bias: kernel(packed(q), packed(k), packed(v), bias)


def _layout_reason(operator: Operator, call: Call) -> str:
    if operator.dense_last and not call.dense_last:
        return "the head axis has a stride"
    if operator.aligned and not _padding(operator, call):
        return call.misaligned
    return ""


def _with_padding(kernel: Kernel, operator: Operator, call: Call, steps: list[str]) -> Kernel:
    """D padded with zeros, which leaves every score and every kept column as they were; the scale stays that of D."""
    extra = _padding(operator, call)
    if not extra:
        return kernel
    size = call.head_dim
    steps.append(f"head size {size} padded to {size + extra}")

    def padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        q, k, v = (F.pad(x, (0, extra)) for x in (q, k, v))
        return kernel(q, k, v, bias)[..., :size]

    return padded


def _padding(operator: Operator, call: Call) -> int:
    multiple = (operator.multiple or {}).get(call.dtype.itemsize, 1)
    return -call.head_dim % multiple
