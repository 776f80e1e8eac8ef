"""``fuse-qkv``: the query, key and value projections of a self-attention by one packed weight.

``packed`` is one product of ``[M, D_in]`` with ``[3 * D, D_in]`` and three views of it; ``split`` three products over
row slices of the packed weight. ``auto`` packs calls of fewer rows M than the threshold and leaves the others to the
stock code, whose three products are what ``split`` would compute: nothing is packed for them. A packed weight is a
variant: 3 * D * D_in values beside the base's own, made once and shared by the sessions on one base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch

from wf_core.api import Handler, RunView, Site, Technique, serving
from wf_plugin_fused_wan.projections import (
    multiply,
    multiply_each,
    multiply_slices,
    pack,
    self_attentions,
    tensors_of,
    why_not,
)

FEATURE = "fuse-qkv"
PACKED, SPLIT, STOCK = "packed", "split", "stock"
MOVED = "the weights of a self-attention were changed or moved after they had been packed"
INFERENCE = "the weights of a self-attention were made in inference mode, where nobody can see them change"
GRADIENTS = "gradients are recorded, and a packed weight would not pass them on"

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Stamp = tuple[tuple[int, int], ...]


@torch.library.custom_op(
    "wf_fused_wan::packed_projection", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,)
)
def packed_projection(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]
) -> torch.Tensor:
    """x ``[..., D_in]`` -> query, key and value beside each other ``[..., 3 * D]``, by the session's packed weight."""
    return cast("PackedProjections", serving(FEATURE)).packed(x, weights, biases)


@packed_projection.register_fake
def _(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], 3 * weights[0].shape[0])


@torch.library.custom_op(
    "wf_fused_wan::split_projections", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,)
)
def split_projections(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x ``[..., D_in]`` -> query, key, value ``[..., D]``, by slices of the session's packed weight."""
    return cast("PackedProjections", serving(FEATURE)).split(x, weights, biases)


@split_projections.register_fake
def _(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (*x.shape[:-1], weights[0].shape[0])
    return x.new_empty(shape), x.new_empty(shape), x.new_empty(shape)


class PackedProjections(Technique):
    """Counts ``fused_blocks`` (self-attentions served from a packed weight in this run), ``packed_calls``,
    ``split_calls``, ``stock_calls`` (those that ``auto`` leaves to the stock code) and ``projections``, the products
    with a packed weight.
    """

    def __init__(self, strategy: str = "auto", split_threshold: int = 8192) -> None:
        self._strategy = strategy
        self._threshold = split_threshold
        self._weights: dict[int, tuple[torch.Tensor, Stamp, list[torch.Tensor]]] = {}
        self._attentions: list[Any] = []
        self._served: set[int] = set()
        self._rows: dict[str, set[int]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {"qkv": self._project}

    def prepare(self, components: Mapping[str, Any]) -> None:
        self._attentions = list(self_attentions(components))

    def check(self, run: RunView) -> Iterable[str]:
        """Refuses a model of whose self-attentions none can be packed. Not in ``prepare``: another model's may be."""
        reasons = [why_not(attn) for attn in self._attentions]
        if reasons and all(reasons):
            return [f"none of the {len(reasons)} self-attentions can be packed: {_joined(reasons)}"]
        return []

    def begin(self, run: RunView) -> None:
        self._served.clear()
        self._rows = {}

    def evidence(self) -> Mapping[str, object]:
        used = {how: _span(rows) for how, rows in self._rows.items()}
        return {"strategy": self._strategy, "rows": used, "packed_bytes": self._bytes()}

    def close(self) -> None:
        self._attentions.clear()
        self._weights.clear()
        self._served.clear()

    def strategy(self, rows: int) -> str:
        """How a call of so many rows (batch times tokens) is computed."""
        if self._strategy != "auto":
            return self._strategy
        return PACKED if rows < self._threshold else STOCK

    def packed(
        self, x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]
    ) -> torch.Tensor:
        """One product, counted: x ``[..., D_in]`` -> ``[..., 3 * D]``."""
        packed = self._weight(weights, biases)
        if packed is None:
            return torch.cat(multiply_each(x, weights, biases), dim=-1)
        self._count(PACKED, x, 1)
        return multiply(x, packed)

    def split(self, x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> Three:
        """Three products over slices, counted: x ``[..., D_in]`` -> three ``[..., D]``."""
        packed = self._weight(weights, biases)
        if packed is None:
            return multiply_each(x, weights, biases)
        self._count(SPLIT, x, 3)
        return multiply_slices(x, packed)

    def _project(self, inner: Callable[..., Three], site: Site, attn: Any, x: torch.Tensor) -> Three:
        how = self.strategy(x.numel() // x.shape[-1])
        compiling = torch.compiler.is_compiling()
        reason = why_not(attn) or (GRADIENTS if torch.is_grad_enabled() and _wants_grad(attn, x) else "")
        if reason or how == STOCK:
            if not compiling:
                self._left(how, reason, x)
            return inner(attn, x)
        packed, split = (packed_projection, split_projections) if compiling else (self.packed, self.split)
        weights, biases = tensors_of(attn)
        if how == PACKED:
            query, key, value = packed(x, weights, biases).chunk(3, dim=-1)
            return query, key, value
        return split(x, weights, biases)

    def _left(self, how: str, reason: str, x: torch.Tensor) -> None:
        """The stock code computes this call: because it cannot be packed, or because three products are no slower."""
        if reason:
            self.counters.fall_back("qkv", reason)
        else:
            self._count(how, x, 0)

    def _count(self, how: str, x: torch.Tensor, products: int) -> None:
        self.counters.add(f"{how}_calls")
        self._rows.setdefault(how, set()).add(x.numel() // x.shape[-1])
        if products:
            self.counters.add("projections", products)

    def _weight(self, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The packed weight of these layers, made at their first call; None, counted, if it cannot stand for them.

        What changed is not packed again: an offloader that moves the layers would have them packed at each call.
        """
        if any(tensor.is_inference() for tensor in (*weights, *biases)):
            self.counters.fall_back("qkv", INFERENCE)
            return None
        name, stamp = id(weights[0]), _stamp([*weights, *biases])
        if name not in self._weights:
            key = f"{weights[0].dtype} on {weights[0].device} at {[place for place, _ in stamp]}"
            made = self.variants.get(key, [*weights, *biases], lambda: pack(weights, biases))
            self._weights[name] = (weights[0], stamp, made)
        _, packed_as, packed = self._weights[name]
        if stamp != packed_as:
            self.counters.fall_back("qkv", MOVED)
            return None
        if name not in self._served:
            self._served.add(name)
            self.counters.add("fused_blocks")
        return packed

    def _bytes(self) -> int:
        packed = [tensor for _, _, tensors in self._weights.values() for tensor in tensors]
        return sum(tensor.numel() * tensor.element_size() for tensor in packed)


def _wants_grad(attn: Any, x: torch.Tensor) -> bool:
    layers = (attn.to_q, attn.to_k, attn.to_v)
    return x.requires_grad or any(p.requires_grad for layer in layers for p in layer.parameters())


def _stamp(tensors: list[torch.Tensor]) -> Stamp:
    """What tells that tensors were written to, or given other storage."""
    return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)


def _span(rows: set[int]) -> list[int]:
    """The least and the most rows."""
    return [min(rows), max(rows)]


def _joined(reasons: list[str]) -> str:
    """Each reason once."""
    return "; ".join(dict.fromkeys(reasons))
