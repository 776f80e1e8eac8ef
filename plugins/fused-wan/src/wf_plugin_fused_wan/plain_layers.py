"""Whether a layer computes what its class says, from its weight and nothing else: then a kernel can stand for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def why_not_plain(what: str, layer: Any) -> str:
    """Why the product of a layer, called ``what``, cannot be computed from its weight; "" if it can. Asks nothing of a
    device, and may be traced.
    """
    if type(layer) is not nn.Linear:
        return (
            f"{what} is no plain linear layer: it is quantised, has a LoRA, or another feature is around it"
        )
    if type(layer.weight) is not nn.Parameter and type(layer.weight) is not torch.Tensor:
        return f"the weight of {what} is not a plain tensor"
    if hooked(layer):
        return f"{what} has hooks, which a fused product would leave out"
    return ""


def hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class's ``forward``: offloaders put one on the instance."""
    hooks = len(module._forward_pre_hooks) + len(module._forward_hooks)
    return hooks > 0 or "forward" in module.__dict__
