"""``fused-rope``: norm and rotary embedding of query and key in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import frozen

from wf_core.api import Handler, Ineligible, RunView, Site, Technique
from wf_plugin_fused_wan import gate, norm_rope
from wf_plugin_fused_wan.dispatch import Dispatch, Kernel
from wf_plugin_fused_wan.norm_rope import Form, Pair, Pairing
from wf_plugin_fused_wan.plain_layers import hooked

FLOAT_EPS = torch.finfo(torch.float32).eps
"""What ``torch.nn.RMSNorm`` takes where its eps is None: that of the dtype it computes in, which is fp32."""


@frozen
class Convention:
    """How the models of a family norm and rotate, as `Form` has it. Norms that are rounded are diffusers' ``RMSNorm``,
    the others ``torch.nn.RMSNorm``.
    """

    pairing: Pairing
    per_head: bool
    rounds: bool

    def norm(self) -> type[Any]:
        """The class of the norms, of which no other is served."""
        if not self.rounds:
            return torch.nn.RMSNorm
        from diffusers.models.normalization import RMSNorm

        kind: type[Any] = RMSNorm
        return kind


CONVENTIONS = {
    "wan": Convention("interleaved", per_head=False, rounds=False),
    "hunyuan": Convention("interleaved", per_head=True, rounds=True),
    "cosmos": Convention("halves", per_head=True, rounds=True),
}
"""By family: neither the shapes of the tables nor those of the norms tell which elements are a pair."""


def ineligible(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    form: Form,
) -> str:
    """As that of the kernel, which could read longer tables: here they are ``[1, L, 1, D]`` or ``[L, D]`` for the L
    queries.
    """
    tokens, head = query.shape[1], query.shape[-1] // form.heads
    for table in (cos, sin):
        if table is not None and tuple(table.shape) not in ((1, tokens, 1, head), (tokens, head)):
            return f"a rope table is {list(table.shape)}, not {[1, tokens, 1, head]} or {[tokens, head]}"
    return norm_rope.ineligible(query, key, query_weight, key_weight, cos, sin, form)


class FusedRope(Technique):
    """Claims ``rope``: in self-attentions and in joint ones, and, where there is only the norm, in cross-attentions and
    for text tokens.
    """

    def __init__(self, family: str = "wan", precision: str = "fp32") -> None:
        """``family`` decides what a pair is. Raises ``ValueError`` for one that is not in `CONVENTIONS`."""
        if family not in CONVENTIONS:
            known = ", ".join(CONVENTIONS)
            raise ValueError(
                f"fused-rope: the norms and tables of {known} are known, not those of {family!r}"
            )
        self.rotations = Dispatch(Kernel("rope", "rope", norm_rope.reference, norm_rope.plan, ineligible))
        self._convention = CONVENTIONS[family]
        self._norm = self._convention.norm()
        self._double = precision == "fp64"
        self._forms: dict[tuple[int, tuple[float, float]], Form] = {}

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
        """Norms of another kind than the family's are not this feature's."""
        one, other = norms
        if not (self._serves(one) and self._serves(other)):
            return inner(query, key, norms, heads, tables)
        weights, eps = (one.weight, other.weight), (_eps(one), _eps(other))
        if torch.compiler.is_compiling():
            from wf_plugin_fused_wan import operators

            if self._convention.rounds and not _alike(query, *weights):
                return inner(query, key, norms, heads, tables)  # whose dtype the operator does not have
            cos, sin = tables or (None, None)
            traced: Pair = operators.norm_rope(query, key, *weights, *eps, heads, cos, sin)
            return traced
        if hooked(one) or hooked(other):
            raise Ineligible("a norm carries hooks, which the kernel would not call")
        args = self.arguments(query, key, *weights, eps, heads, tables)
        out: Pair = self.rotations(self.counters, *args)
        return out

    def _serves(self, norm: Any) -> bool:
        return type(norm) is self._norm and (not self._convention.rounds or norm.bias is None)

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
        cos, sin = tables or (None, None)
        form = self._forms.get((heads, eps)) or self._new_form(heads, eps)
        return query, key, query_weight, key_weight, cos, sin, form

    def _new_form(self, heads: int, eps: tuple[float, float]) -> Form:
        """Kept, one for equal numbers: calls are told apart by it, and an object is equal to itself at once."""
        how = self._convention
        form = self._forms[heads, eps] = Form(
            heads, eps, per_head=how.per_head, rounds=how.rounds, pairing=how.pairing, double=self._double
        )
        return form


def _eps(norm: Any) -> float:
    return FLOAT_EPS if norm.eps is None else float(norm.eps)


def _alike(query: torch.Tensor, *weights: torch.Tensor | None) -> bool:
    return all(weight is None or weight.dtype == query.dtype for weight in weights)
