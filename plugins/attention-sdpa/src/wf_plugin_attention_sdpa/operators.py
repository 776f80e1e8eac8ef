"""The operators behind ``scaled_dot_product_attention``, called directly, and when each may be called.

Calling one needs no flag: ``torch.nn.attention.sdpa_kernel`` and ``torch.backends.cuda.enable_*_sdp`` set state that
every thread of the process sees. What the public function does on the way to an operator is done here instead:
a bias for the mask, padding of D, alignment. The limits are those of
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``, without its look at the process-wide flags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from wf_lib_attention.call import Call
from wf_lib_attention.grouped import Kernel
from wf_lib_attention.machine import Machine

_ATEN = torch.ops.aten
MATH_LIMIT = 2 * 1024**3
"""Bytes of one score matrix above which a kernel that writes it out is refused."""
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Operator:
    """One operator. ``why_not`` gives the reason why it cannot serve a call that is well formed, or "".

    ``bind(call, scale)`` gives the kernel in BHLD; no scale means ``D ** -0.5``, the operator's own default.
    ``multiple`` is what D is padded to, by dtype size; ``aligned`` says that strides and offsets must be multiples of
    16 bytes; ``groups`` says how fewer key heads are served: "own" by the operator, else "view" or "copy".
    ``zeroes`` says that rows without any key come out as zeros; ``blocked`` is the bias of a pair that does not attend.
    """

    name: str
    device: str
    why_not: Callable[[Call, Machine], str]
    bind: Callable[[Call, float | None], Kernel]
    multiple: dict[int, int] | None = None
    dense_last: bool = True
    aligned: bool = False
    groups: str = "own"
    zeroes: bool = True
    blocked: float = -torch.inf


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def too_big(call: Call, what: str) -> str:
    """The veto over kernels that write out the whole score matrix."""
    if call.score_bytes <= MATH_LIMIT:
        return ""
    return (
        f"{what} would allocate {call.score_bytes} bytes for the scores of {call.batch} x {call.heads} heads x "
        f"{call.lengths[0]} x {call.lengths[1]} tokens, above the limit of {MATH_LIMIT}"
    )


def _math_why_not(call: Call, machine: Machine) -> str:
    return too_big(call, "the math kernel")


def _cpu_flash_why_not(call: Call, machine: Machine) -> str:
    allowed = (*_HALF, torch.float32, torch.float64)
    return "" if call.dtype in allowed else f"torch's CPU flash kernel does not take {_name(call.dtype)}"


def _flash_why_not(call: Call, machine: Machine) -> str:
    if call.dtype not in _HALF:
        return f"torch's flash kernel takes float16 and bfloat16, this call is {_name(call.dtype)}"
    if machine.capability < (8, 0):
        return f"torch's flash kernel needs compute capability 8.0, this device has {machine.version}"
    if call.head_dim > 256:
        return f"torch's flash kernel takes head sizes up to 256, this call has {call.head_dim}"
    if call.mask is not None:
        return "torch's flash kernel takes no mask"
    return _no_grad(call, "torch's flash kernel")


def _efficient_why_not(call: Call, machine: Machine) -> str:
    if call.dtype not in (*_HALF, torch.float32):
        return f"the memory-efficient kernel takes float16, bfloat16 and float32, this call is {_name(call.dtype)}"
    if call.dtype is torch.bfloat16 and machine.capability < (8, 0):
        return f"bfloat16 needs compute capability 8.0 here, this device has {machine.version}"
    return _no_grad(call, "the memory-efficient kernel")


def _cudnn_why_not(call: Call, machine: Machine) -> str:
    if call.dtype not in _HALF:
        return f"cuDNN attention takes float16 and bfloat16, this call is {_name(call.dtype)}"
    if machine.capability < (8, 0):
        return f"cuDNN attention needs compute capability 8.0, this device has {machine.version}"
    wide = machine.capability[0] in (9, 10) and machine.cudnn > 92200
    limit = 256 if wide else 128
    if call.head_dim > limit:
        return f"cuDNN attention takes head sizes up to {limit} here, this call has {call.head_dim}"
    if call.lengths[1] == 1:
        return "cuDNN attention cannot take a single key (pytorch issue 138529)"
    if max(call.batch, call.heads) > 65535:
        return "cuDNN attention takes at most 65535 batches and heads"
    if machine.cudnn < 91501 and any(length % 128 for length in call.lengths):
        return (
            f"cuDNN {machine.cudnn} reads bad memory at lengths that are no multiple of 128 (pytorch issue 169849); "
            f"this call has {call.lengths[0]} and {call.lengths[1]}"
        )
    if call.deterministic:
        return "cuDNN attention is not offered while torch.use_deterministic_algorithms is on"
    return _no_grad(call, "cuDNN attention")


def _no_grad(call: Call, what: str) -> str:
    return (
        f"{what} is called without the log-sum-exp that a gradient needs; use torch.no_grad()"
        if call.grad
        else ""
    )


def _keywords(scale: float | None, **more: bool) -> dict[str, float | bool]:
    """Only what differs from the operator's default: each keyword costs 1 to 3 microseconds a call."""
    given = {name: value for name, value in more.items() if value}
    return given if scale is None else {**given, "scale": scale}


def _bind_math(call: Call, scale: float | None) -> Kernel:
    op = _ATEN._scaled_dot_product_attention_math.default
    keywords = _keywords(scale, enable_gqa=call.grouped)
    if call.mask is None:
        return lambda q, k, v, bias: op(q, k, v, **keywords)[0]
    return lambda q, k, v, bias: op(q, k, v, bias, **keywords)[0]


def _bind_cpu_flash(call: Call, scale: float | None) -> Kernel:
    op = _ATEN._scaled_dot_product_flash_attention_for_cpu.default
    keywords = _keywords(scale)
    if call.mask is None:
        return lambda q, k, v, bias: op(q, k, v, **keywords)[0]
    return lambda q, k, v, bias: op(q, k, v, attn_mask=bias, **keywords)[0]


def _bind_flash(call: Call, scale: float | None) -> Kernel:
    op = _ATEN._scaled_dot_product_flash_attention.default
    keywords = _keywords(scale)
    return lambda q, k, v, bias: op(q, k, v, **keywords)[0]


def _bind_efficient(call: Call, scale: float | None) -> Kernel:
    op = _ATEN._scaled_dot_product_efficient_attention.default
    keywords = _keywords(scale)

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if bias is not None:
            bias = bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        return op(q, k, v, bias, False, **keywords)[0]

    return kernel


def _bind_cudnn(call: Call, scale: float | None) -> Kernel:
    op = _ATEN._scaled_dot_product_cudnn_attention.default
    keywords = _keywords(scale)

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if bias is not None:
            bias = bias.expand(-1, -1, q.shape[2], k.shape[2]).contiguous()
        return op(q, k, v, bias, False, **keywords)[0]

    return kernel


MATH = Operator("aten::_scaled_dot_product_attention_math", "", _math_why_not, _bind_math, dense_last=False)
CPU_FLASH = Operator(
    "aten::_scaled_dot_product_flash_attention_for_cpu", "cpu", _cpu_flash_why_not, _bind_cpu_flash
)
FLASH = Operator(
    "aten::_scaled_dot_product_flash_attention",
    "cuda",
    _flash_why_not,
    _bind_flash,
    multiple={2: 8},
    aligned=True,
)
EFFICIENT = Operator(
    "aten::_scaled_dot_product_efficient_attention",
    "cuda",
    _efficient_why_not,
    _bind_efficient,
    multiple={2: 8, 4: 4},
    aligned=True,
    groups="view",
    zeroes=False,
)
# Key heads are repeated before the operator: for grouped heads it returns wrong numbers on compute capability 10 with
# fewer than 8 of them (pytorch issue 193893). torch fills a cuDNN bias with the lowest fp16 number, because a block of
# -inf alone gives NaN there.
CUDNN = Operator(
    "aten::_scaled_dot_product_cudnn_attention",
    "cuda",
    _cudnn_why_not,
    _bind_cudnn,
    multiple={2: 8},
    aligned=True,
    groups="copy",
    zeroes=False,
    blocked=-65504.0,
)
