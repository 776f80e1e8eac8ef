"""Which projections of a self-attention can be packed, and the packed weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from wf_plugin_fused_wan.plain_layers import why_not_plain

LAYERS = ("to_q", "to_k", "to_v")


def self_attentions(components: Mapping[str, Any]) -> Iterator[Any]:
    """Every attention of the components that projects query, key and value from one input."""
    for component in components.values():
        if isinstance(component, nn.Module):
            for module in component.modules():
                if _projects(module) and not getattr(module, "is_cross_attention", False):
                    yield module


def _projects(module: Any) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Module) for name in LAYERS)


def why_not(attn: Any) -> str:
    """Why the projections of ``attn`` cannot be packed; "" if they can. Asks nothing of a device, and may be traced."""
    if getattr(attn, "fused_projections", False):
        return "the projections of a self-attention are fused already"
    query, key, value = attn.to_q, attn.to_k, attn.to_v
    for layer in (query, key, value):
        reason = why_not_plain("a projection", layer)
        if reason:
            return reason
    if not _alike(query, key) or not _alike(query, value):
        return "the projections of a self-attention differ in size, dtype, device or bias"
    return ""


def _alike(one: nn.Linear, other: nn.Linear) -> bool:
    a, b = one.weight, other.weight
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.device == b.device
        and (one.bias is None) == (other.bias is None)
    )


def tensors_of(attn: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The weights ``[D, D_in]`` and biases ``[D]`` of query, key and value; no biases where there are none."""
    layers = (attn.to_q, attn.to_k, attn.to_v)
    weights = [layer.weight for layer in layers]
    return weights, [] if attn.to_q.bias is None else [layer.bias for layer in layers]


def pack(weights: list[torch.Tensor], biases: list[torch.Tensor]) -> list[torch.Tensor]:
    """The packed weight ``[3 * D, D_in]`` and, with biases, the packed bias ``[3 * D]``: query, key, value below each
    other.
    """
    with torch.inference_mode(False), torch.no_grad():
        return [torch.cat([part.detach() for part in parts]) for parts in (weights, biases) if parts]


def multiply(x: torch.Tensor, packed: list[torch.Tensor]) -> torch.Tensor:
    """One product: x ``[..., D_in]`` -> ``[..., 3 * D]``."""
    return linear(x, *packed)


def multiply_slices(
    x: torch.Tensor, packed: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three products over row slices of the packed weight: x ``[..., D_in]`` -> three ``[..., D]``."""
    query, key, value = zip(*(part.chunk(3) for part in packed), strict=True)
    return linear(x, *query), linear(x, *key), linear(x, *value)


def multiply_each(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three products with the layers' own weights, as the stock code makes them."""
    query, key, value = zip(weights, strict=True) if not biases else zip(weights, biases, strict=True)
    return linear(x, *query), linear(x, *key), linear(x, *value)
