"""One tiny real call when a session opens: what an import and a version cannot tell about a compiled kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F

MODELS = ("transformer", "transformer_2")
TOKENS = 128
HEADS = 2


def model_of(components: Mapping[str, Any]) -> torch.nn.Module | None:
    """The denoiser among a session's components; a pipeline with two experts may have one of them alone."""
    found = (components.get(name) for name in MODELS)
    return next((model for model in found if isinstance(model, torch.nn.Module)), None)


def device_of(model: torch.nn.Module) -> torch.device | None:
    """Where the first tensor of a model lies; None for a model without any."""
    first = next(_tensors(model), None)
    return None if first is None else first.device


def _tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def inputs(
    device: torch.device, dtype: torch.dtype, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value ``[1, 128, 2, head_dim]``, always the same. The process's random numbers are left alone."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, TOKENS, HEADS, head_dim)
    query, key, value = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(3))
    return query, key, value


def relative_error(out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float:
    """The L2 norm of the difference to torch's attention in float32, over the norm of that."""
    query, key, value = (x.float().transpose(1, 2) for x in (query, key, value))
    exact = F.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    return float((out.float() - exact).norm() / exact.norm())
