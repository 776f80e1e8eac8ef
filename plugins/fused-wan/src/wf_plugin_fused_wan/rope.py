"""``fused-rope``: norm and rotary embedding of query and key in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from wf_core.api import Handler, Ineligible, RunView, Site, Technique
from wf_plugin_fused_wan import gate, norm_rope
from wf_plugin_fused_wan.dispatch import Dispatch, Kernel
from wf_plugin_fused_wan.norm_rope import Form, Pair
from wf_plugin_fused_wan.plain_layers import hooked

FLOAT_EPS = torch.finfo(torch.float32).eps
"""What ``torch.nn.RMSNorm`` takes where its eps is None: that of the dtype it computes in, which is fp32."""


def ineligible(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    form: Form,
) -> str:
    """As that of the kernel, which could read longer tables: here they are ``[1, L, 1, D]`` for the L queries."""
    expected = (1, query.shape[1], 1, query.shape[-1] // form.heads)
    for table in (cos, sin):
        if table is not None and table.shape != expected:
            return f"a rope table is {list(table.shape)}, not {list(expected)}"
    return norm_rope.ineligible(query, key, query_weight, key_weight, cos, sin, form)


class FusedRope(Technique):
    """Claims ``rope``, in self-attentions and, where there is only the norm, in cross-attentions."""

    def __init__(self, precision: str = "fp32") -> None:
        self.rotations = Dispatch(Kernel("rope", "rope", norm_rope.reference, norm_rope.plan, ineligible))
        self._double = precision == "fp64"

    def handlers(self) -> Mapping[str, Handler]:
        return {"rope": self.rope}

    def prepare(self, components: Mapping[str, Any]) -> None:
        gate.require(components)

    def begin(self, run: RunView) -> None:
        self.end()

    def end(self) -> None:
        self.rotations.forget()

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
        one, other = norms
        if type(one) is not torch.nn.RMSNorm or type(other) is not torch.nn.RMSNorm:
            return inner(query, key, norms, heads, tables)
        weights, eps = (one.weight, other.weight), (_eps(one), _eps(other))
        if torch.compiler.is_compiling():
            from wf_plugin_fused_wan import operators

            cos, sin = tables or (None, None)
            traced: Pair = operators.norm_rope(query, key, *weights, *eps, heads, cos, sin)
            return traced
        if hooked(one) or hooked(other):
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
        """What the kernel takes."""
        per_head = query_weight is not None and query_weight.shape[0] * heads == query.shape[-1] and heads > 1
        cos, sin = tables or (None, None)
        return query, key, query_weight, key_weight, cos, sin, _form(heads, eps, per_head, self._double)


@lru_cache(maxsize=64)
def _form(heads: int, eps: tuple[float, float], per_head: bool, double: bool) -> Form:
    """One object for equal forms: calls are told apart by it, and an object is equal to itself at once."""
    return Form(heads, eps, per_head=per_head, double=double)


def _eps(norm: torch.nn.RMSNorm) -> float:
    return FLOAT_EPS if norm.eps is None else norm.eps
