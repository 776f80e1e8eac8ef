"""``fused-gelu``: the first product of a feed-forward with its GELU in the same kernel, cuBLASLt's epilogue.

Stock writes the product ``[B, L, 4 D]``, reads it and writes as much again; here it is written once, already activated,
and rounded once instead of twice. ``gelu_tanh(x) = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`` (arXiv
1606.08415).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn

from wf_core.api import Handler, Ineligible, Site, Technique, serving

DTYPES = (torch.float16, torch.bfloat16)
SEAM = "feed_forward"


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The stock computation: x ``[..., in]``, weight ``[out, in]``, bias ``[out]`` -> ``[..., out]``."""
    return nn.functional.gelu(nn.functional.linear(x, weight, bias), approximate="tanh")


def ineligible(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> str:
    """Why the epilogue cannot serve this call; "" when it can."""
    if not x.is_cuda:
        return f"the epilogue is cuBLASLt's, for CUDA devices, and this call is on {x.device.type}"
    if not x.dtype == weight.dtype == bias.dtype or x.dtype not in DTYPES:
        return f"the epilogue takes float16 or bfloat16 alike, this call has {x.dtype}, {weight.dtype} and {bias.dtype}"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, weight, bias)):
        return "a gradient is wanted, which the fused product does not keep what it needs for"
    return ""


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """One product with bias and tanh GELU, contiguous. On the CPU torch's operator would take the other GELU."""
    rows = torch._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.t(), use_gelu=True)
    return rows.view(*x.shape[:-1], weight.shape[0])


class FusedGelu(Technique):
    """Claims ``feed_forward`` of every block."""

    def handlers(self) -> Mapping[str, Handler]:
        return {SEAM: self.feed_forward}

    def prepare(self, components: Mapping[str, Any]) -> None:
        if not hasattr(torch, "_addmm_activation"):
            raise Ineligible("this torch has no product with an activation in its epilogue")

    def feed_forward(
        self, inner: Callable[..., torch.Tensor], site: Site, module: Any, x: torch.Tensor
    ) -> torch.Tensor:
        first, *rest = module.net
        reason = foreign(first)
        if reason:
            raise Ineligible(reason)
        weight, bias = first.proj.weight, first.proj.bias
        y = activated(x, weight, bias) if torch.compiler.is_compiling() else self.compute(x, weight, bias)
        for layer in rest:
            y = layer(y)
        return y

    def compute(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """The activated product, counted. Raises ``Ineligible``."""
        reason = ineligible(x, weight, bias)
        if reason:
            raise Ineligible(reason)
        out = launch(x, weight, bias)
        self.counters.add("calls")
        return out


def foreign(first: Any) -> str:
    """Why the first layer is not a plain product with bias and tanh GELU; "" when it is."""
    if type(first).__name__ != "GELU" or getattr(first, "approximate", "") != "tanh":
        return f"the feed-forward begins with {type(first).__name__}, and only tanh GELU has an epilogue"
    layer = first.proj
    if type(layer) is not nn.Linear:
        return f"the layer before the GELU is {type(layer).__name__}, changed by another feature or a library"
    if layer.bias is None:
        return "the layer before the GELU has no bias"
    hooked = (first._forward_hooks, first._forward_pre_hooks, layer._forward_hooks, layer._forward_pre_hooks)
    return "the layer before the GELU carries hooks, which would not be called" if any(hooked) else ""


@torch.library.custom_op("wf_fused_wan::activated", mutates_args=())
def activated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """As `FusedGelu.compute`, for compiled code."""
    technique = cast("FusedGelu", serving("fused-gelu"))
    try:
        return technique.compute(x, weight, bias)
    except Ineligible as why:
        if not technique.dense_when_ineligible:
            raise
        technique.counters.fall_back(SEAM, str(why))
        return reference(x, weight, bias).contiguous()


@activated.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
