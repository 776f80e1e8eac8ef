"""``fused-gelu``: the first product of a feed-forward with its GELU in the same kernel, cuBLASLt's epilogue.

Stock writes the product ``[B, L, F]``, reads it and writes as much again; here it is written once, already activated,
and rounded once instead of twice. ``gelu_tanh(x) = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`` (arXiv
1606.08415): that of Wan and HunyuanVideo. Cosmos has the GELU of the error function, another function than the
epilogue's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn

from wf_core.api import Handler, Ineligible, RunView, Site, Technique, serving
from wf_plugin_fused_wan.plain_layers import hooked, why_not_plain

FEATURE, SEAM = "fused-gelu", "feed_forward"
DTYPES = (torch.float16, torch.bfloat16)
FIRST = "the layer before the GELU"


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The stock computation: x ``[..., in]``, weight ``[out, in]``, bias ``[out]`` -> ``[..., out]``."""
    return nn.functional.gelu(nn.functional.linear(x, weight, bias), approximate="tanh")


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """One product with bias and tanh GELU, contiguous. For calls that ``ineligible`` has nothing against: on the CPU
    torch's operator computes the GELU with the error function.
    """
    rows = torch._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.t(), use_gelu=True)
    return rows.view(*x.shape[:-1], weight.shape[0])


def ineligible(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> str:
    """Why the epilogue cannot serve this call; "" when it can."""
    if not x.is_cuda:
        return f"the epilogue is cuBLASLt's, for CUDA devices, and this call is on {x.device.type}"
    if weight.device != x.device or bias.device != x.device:
        return f"the hidden states are on {x.device}, and the weights are on {weight.device}"
    if not x.dtype == weight.dtype == bias.dtype or x.dtype not in DTYPES:
        return f"the epilogue takes float16 or bfloat16 alike, this call has {x.dtype}, {weight.dtype} and {bias.dtype}"
    if torch.is_autocast_enabled("cuda"):
        return "autocast is on, which chooses the dtype of the stock product and knows nothing of this one"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, weight, bias)):
        return "a gradient is wanted, which the fused product does not keep what it needs for"
    return ""


def foreign(module: Any) -> str:
    """Why a feed-forward is not diffusers' own, of a plain product with bias, a tanh GELU and whatever follows; "" when
    it is. May be traced.
    """
    if not _is_of_diffusers(module, "FeedForward"):
        return f"the feed-forward is a {type(module).__name__}, not diffusers' FeedForward"
    first = module.net[0]
    if not _is_of_diffusers(first, "GELU") or first.approximate != "tanh":
        return f"the feed-forward begins with a {type(first).__name__}, and only tanh GELU has an epilogue"
    reason = why_not_plain(FIRST, first.proj)
    if reason:
        return reason
    if first.proj.bias is None:
        return f"{FIRST} has no bias"
    if hooked(module) or hooked(first):
        return "the feed-forward or its GELU has hooks, which a fused product would leave out"
    return ""


class FusedGelu(Technique):
    """Claims ``feed_forward`` of every block. Counts ``calls``."""

    def __init__(self) -> None:
        self._roots: dict[str, nn.Module] = {}
        self._modules: dict[tuple[str, str], nn.Module] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {SEAM: self.feed_forward}

    def prepare(self, components: Mapping[str, Any]) -> None:
        if not hasattr(torch, "_addmm_activation"):
            raise Ineligible("this torch has no product with an activation in its epilogue")
        self._roots = {name: root for name, root in components.items() if isinstance(root, nn.Module)}

    def wants(self, site: Site) -> bool:
        """All of them; notes which modules they are, as families call them by different names."""
        self._modules[site.root, site.path] = self._roots[site.root].get_submodule(site.path)
        return True

    def check(self, run: RunView) -> Iterable[str]:
        """Refuses a model of which a feed-forward cannot be served, or, where such go to the stock code, none can."""
        reasons = [foreign(module) for module in self._modules.values()]
        left = [reason for reason in reasons if reason]
        if left and (len(left) == len(reasons) or not self.dense_when_ineligible):
            told = "; ".join(dict.fromkeys(left))
            return [f"{len(left)} of {len(reasons)} feed-forwards cannot be fused: {told}"]
        return []

    def evidence(self) -> Mapping[str, object]:
        """What is left to the stock code is counted call by call, but not in compiled code: so it is named here."""
        reasons = sorted({reason for reason in map(foreign, self._modules.values()) if reason})
        return {"left_to_stock": reasons} if reasons else {}

    def close(self) -> None:
        self._roots.clear()
        self._modules.clear()

    def feed_forward(
        self, inner: Callable[..., torch.Tensor], site: Site, module: Any, x: torch.Tensor
    ) -> torch.Tensor:
        """x ``[B, L, D]`` through the feed-forward of one block."""
        compiling = torch.compiler.is_compiling()
        reason = foreign(module)
        if reason:
            if compiling:
                return inner(module, x)  # a run that may not do this was refused before it began
            raise Ineligible(reason)
        first, *rest = module.net
        compute = activated if compiling else self.compute
        y: torch.Tensor = compute(x, first.proj.weight, first.proj.bias)
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


@torch.library.custom_op("wf_fused_wan::activated", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,))
def activated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """As `FusedGelu.compute`, for compiled code."""
    technique = cast("FusedGelu", serving(FEATURE))
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


def _is_of_diffusers(module: Any, name: str) -> bool:
    kind = type(module)
    return kind.__name__ == name and kind.__module__.startswith("diffusers.")
