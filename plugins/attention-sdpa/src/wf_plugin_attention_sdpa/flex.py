"""flex_attention: a fused kernel made by ``torch.compile`` on CUDA, the same mathematics uncompiled on the CPU.

On the CPU the operator under the public function is called, because the public function, uncompiled, warns and sets
compiler state that the whole process sees. Error on the CPU against float64: as the math kernel's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from wf_lib_attention import masks
from wf_lib_attention.caching import Recipe
from wf_lib_attention.call import Call
from wf_lib_attention.machine import Machine
from wf_plugin_attention_sdpa.operators import too_big

NAME = "flex_attention"
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def why_not(call: Call, machine: Machine) -> str:
    """The reason why flex_attention cannot serve a call that is well formed, or ""."""
    if call.device.type == "cpu":
        return too_big(call, "uncompiled flex_attention")
    if call.device.type != "cuda":
        return f"flex_attention runs on CUDA and CPU devices, this call is on {call.device.type}"
    if call.dtype not in _DTYPES:
        return f"compiled flex_attention takes float16, bfloat16 and float32, this call is {call.dtype}"
    if machine.capability < (8, 0):
        return "compiled flex_attention needs compute capability 8.0"
    if call.head_dim < 16:
        return f"compiled flex_attention needs a head size of 16 or more, this call has {call.head_dim}"
    return ""


def build(call: Call) -> Recipe:
    """The recipe of a call."""
    if call.device.type == "cpu":
        return partial(_uncompiled, _everything(call), call.head_dim**-0.5)
    static = (call.query, call.key, call.mask, call.strides, call.dtype, call.device, call.grad)
    return partial(_run, compiled(static, "inductor", call.mask is not None))


def _run(
    kernel: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if mask is None:
        return kernel(query, key, value).transpose(1, 2)
    return kernel(query, key, value, _full(mask, query, key)).transpose(1, 2)


@lru_cache(maxsize=64)
def compiled(static: tuple[Any, ...], backend: str, masked: bool) -> Callable[..., torch.Tensor]:
    """One compiled kernel per ``static`` description of a call.

    Each gets a code object of its own: Dynamo limits the number of graphs per code object, and a long-lived process
    that serves many sizes would meet that limit.
    """
    template = _masked if masked else _dense
    own = FunctionType(template.__code__.replace(), template.__globals__, template.__name__)
    return torch.compile(own, backend=backend, fullgraph=True, dynamic=False)


def _dense(query, key, value):  # type: ignore[no-untyped-def]
    return flex_attention(query, key, value, enable_gqa=query.shape[1] != key.shape[1])


def _masked(query, key, value, mask):  # type: ignore[no-untyped-def]
    def attends(score, b, h, row, column):  # type: ignore[no-untyped-def]
        return torch.where(mask[b, h, row, column], score, -float("inf"))

    return flex_attention(query, key, value, score_mod=attends, enable_gqa=query.shape[1] != key.shape[1])


def _uncompiled(
    everything: tuple[Any, ...],
    scale: float,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    from torch._higher_order_ops.flex_attention import flex_attention as operator

    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    score_mod = _unchanged
    if mask is not None:
        full = _full(mask, query, key)

        def score_mod(score, b, h, row, column):  # type: ignore[no-untyped-def]
            return torch.where(full[b, h, row, column], score, -float("inf"))

    return operator(query, key, value, score_mod, everything, scale, {})[0].transpose(1, 2)


def _unchanged(score, b, h, row, column):  # type: ignore[no-untyped-def]
    return score


def _full(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return masks.lift(mask).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _everything(call: Call) -> tuple[Any, ...]:
    """The block mask that lets every pair attend, as the operator takes it."""
    rows, columns = call.lengths
    blocks = create_block_mask(_always, None, None, rows, columns, device=call.device)
    return blocks.as_tuple()


def _always(b, h, row, column):  # type: ignore[no-untyped-def]
    return row.new_ones((), dtype=torch.bool)
