"""The ``linear`` seam: every ``nn.Linear`` of a block, by its path (``blocks.3.attn1.to_q``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from wf_core.api import specialise
from wf_lib_family.closed import SLOT, close_slot
from wf_lib_family.sites import Wrap


def _namespace(stock: type) -> Mapping[str, Any]:
    def forward(self: Any, input: torch.Tensor) -> Any:  # noqa: A002 (the stock name)
        return self._wf(input)

    return {"forward": forward}


def open_linears(block: nn.Module, wrap: Wrap, path: str, index: int) -> None:
    """Put the seam around the layers of one block; x ``[..., in]`` -> ``[..., out]``.

    A subclass instead of a ``forward`` on the instance: torch.compile guards the latter by identity, and would compile
    every block anew until it gives up.
    """
    for name, layer in list(block.named_modules()):
        if isinstance(layer, nn.Linear):
            stock = layer.forward
            chain = wrap("linear", stock, path=f"{path}.{name}", index=index, role=name)
            if chain is not stock:
                setattr(layer, SLOT, chain)
                specialise(layer, _namespace)


def close_linears(block: nn.Module) -> None:
    """Drop the chains, each of which ends in the stock forward of the layer that holds it."""
    for layer in block.modules():
        if isinstance(layer, nn.Linear):
            close_slot(layer)
