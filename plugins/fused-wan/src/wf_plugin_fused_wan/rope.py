"""``fused-rope``: norm and rotary embedding of query and key in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from wf_core.api import Handler, Ineligible, RunView, Site, Technique
from wf_plugin_fused_wan import gate, norm_rope
from wf_plugin_fused_wan.dispatch import Dispatch, Kernel
from wf_plugin_fused_wan.norm_rope import Form, Pair

FLOAT_EPS = torch.finfo(torch.float32).eps
"""What ``torch.nn.RMSNorm`` takes where its eps is None: that of the dtype it computes in, which is fp32."""
MOST_TABLES = 4
"""Different grids and devices in use at one time: two experts, and a second device."""


class FusedRope(Technique):
    """Claims ``rope``, in self-attentions and, where there is only the norm, in cross-attentions."""

    def __init__(self, precision: str = "fp32") -> None:
        self.rotations = Dispatch(
            Kernel("rope", "rope", norm_rope.reference, norm_rope.plan, norm_rope.ineligible)
        )
        self._double = precision == "fp64"
        self._halves = HalfTables()

    def handlers(self) -> Mapping[str, Handler]:
        return {"rope": self.rope}

    def prepare(self, components: Mapping[str, Any]) -> None:
        gate.require()

    def begin(self, run: RunView) -> None:
        self.end()

    def end(self) -> None:
        self.rotations.forget()
        self._halves.clear()

    def held_tensors(self) -> Iterable[torch.Tensor]:
        return self._halves.tensors()

    def evidence(self) -> Mapping[str, object]:
        reasons = self.rotations.reasons()
        shown: dict[str, object] = {"precision": "fp64" if self._double else "fp32"}
        return {**shown, "not_by_kernel": reasons} if reasons else shown

    def rope(
        self,
        inner: Callable[..., Pair],
        site: Site,
        query: torch.Tensor,
        key: torch.Tensor,
        norms: tuple[Any, Any],
        heads: int,
        tables: Pair | None,
    ) -> Pair:
        """Norms of another kind than ``torch.nn.RMSNorm`` are not this feature's."""
        if any(type(norm) is not torch.nn.RMSNorm for norm in norms):
            return inner(query, key, norms, heads, tables)
        weights = (norms[0].weight, norms[1].weight)
        eps = (_eps(norms[0]), _eps(norms[1]))
        if torch.compiler.is_compiling():
            from wf_plugin_fused_wan import operators

            cos, sin = tables or (None, None)
            traced: Pair = operators.norm_rope(query, key, *weights, *eps, heads, cos, sin)
            return traced
        if any(norm._forward_hooks or norm._forward_pre_hooks for norm in norms):
            raise Ineligible("a norm carries hooks, which the kernel would not call")
        args = self.arguments(query, key, *weights, eps, heads, tables)
        out: Pair = self.rotations(self.counters, *args)
        return out

    def arguments(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        query_weight: torch.Tensor | None,
        key_weight: torch.Tensor | None,
        eps: tuple[float, float],
        heads: int,
        tables: Pair | None,
    ) -> tuple[Any, ...]:
        """What the kernel takes. Raises ``Ineligible`` for tables that are not ``[1, L, 1, D]`` for the L queries."""
        per_head = query_weight is not None and query_weight.shape[0] * heads == query.shape[-1] and heads > 1
        form = Form(heads, eps, per_head=per_head, double=self._double)
        if tables is None:
            return query, key, query_weight, key_weight, None, None, form
        tokens, head = query.shape[1], query.shape[-1] // heads
        for table in tables:
            if table.shape != (1, tokens, 1, head):
                raise Ineligible(f"a rope table is {list(table.shape)}, not {[1, tokens, 1, head]}")
        return query, key, query_weight, key_weight, *self._halves.of(tables), form


class HalfTables:
    """The tables of a model without their repetitions, made once per forward instead of once per block.

    Known by memory and not by object, as compiled code hands the same memory over in objects of its own; the tables
    are held while their halves are, so that no other tensor can have that memory meanwhile.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Pair, Pair]] = {}

    def of(self, tables: Pair) -> Pair:
        """cos and sin ``[1, L, 1, D]`` -> ``[L, D / 2]`` each."""
        key = tuple((t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in tables)
        found = self._known.get(key)
        if found is None:
            if len(self._known) == MOST_TABLES:
                del self._known[next(iter(self._known))]
            found = self._known[key] = (tables, norm_rope.half_tables(*tables))
        return found[1]

    def tensors(self) -> Iterable[torch.Tensor]:
        """All that is held: tables and halves."""
        return [tensor for pairs in self._known.values() for pair in pairs for tensor in pair]

    def clear(self) -> None:
        """Drop them."""
        self._known.clear()


def _eps(norm: torch.nn.RMSNorm) -> float:
    return FLOAT_EPS if norm.eps is None else norm.eps
