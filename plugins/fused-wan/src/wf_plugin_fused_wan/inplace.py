"""``inplace-residual``: the residuals of a block are added in pieces, into a tensor that belongs to the block.

The stock code makes a copy of the hidden states in fp32, the product with the gate and their sum, each of the whole
size. Here only rows of one exist at a time. The first residual of a block goes into a tensor of its own, because its
input may be kept by a cache; the others are written over that one, and over no other: a tensor that this feature did
not make itself is never written to.

Beside ``fused-modulation``, whose kernel makes nothing but the result, this feature is the outer one: it says which
tensor may be written to, and the kernel writes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import torch

from wf_core.api import Handler, Ineligible, RunView, Site, Technique, serving

if TYPE_CHECKING:
    from wf_plugin_fused_wan.modulation import FusedModulation

SCRATCH = 64 * 2**20
"""Bytes of fp32 rows that are computed at a time."""
MOST_ROWS = 4096
FP32 = 4
NOT_WRITTEN = "the fused kernel could not write over this residual, which was added into a new tensor"
COMPILED = "no residual came here outside compiled code, where adding in place saves nothing"

Residual = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]


class InplaceResidual(Technique):
    """Counts ``inplace_adds``, ``fresh_adds`` (the first of a block) and ``bytes_avoided``, what the stock code, or the
    fused kernel where there is one, would have allocated more.
    """

    def __init__(self, scratch: int = SCRATCH) -> None:
        self._scratch = scratch
        self._own: weakref.ref[torch.Tensor] | None = None
        self._calls = 0
        self._fused: FusedModulation | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {"gated_residual": self._add}

    def begin(self, run: RunView) -> None:
        self._own, self._calls, self._fused = None, 0, None

    def end(self) -> None:
        self._own = self._fused = None

    def evidence(self) -> Mapping[str, object]:
        return {} if self._calls else {"compiled": COMPILED}

    def _add(
        self, inner: Residual, site: Site, x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None
    ) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return inner(x, out, gate)
        if not self._calls:
            self._fused = fused_modulation()
        self._calls += 1
        require_no_grad(x, out, gate)
        if not in_stock_types(x, out, gate):
            self.counters.fall_back(
                "gated_residual", "the residual is not of the hidden states' size and dtype"
            )
            return inner(x, out, gate)
        target = self._private(site.role, x)
        if self._fused is not None:
            return self._by_kernel(self._fused, inner, x, out, gate, target)
        if gate is None:
            return self._plain(inner, x, out, target)
        return self._gated(x, out, gate, target)

    def _private(self, role: str, x: torch.Tensor) -> torch.Tensor | None:
        """x if it may be written to: it was made here, by an earlier residual of the same block."""
        mine = self._own is not None and self._own() is x
        return x if mine and role != "self" else None

    def _by_kernel(
        self,
        fused: FusedModulation,
        inner: Residual,
        x: torch.Tensor,
        out: torch.Tensor,
        gate: torch.Tensor | None,
        target: torch.Tensor | None,
    ) -> torch.Tensor:
        with fused.writing_into(target):
            result = inner(x, out, gate)
        if target is not None and result is not target:
            self.counters.fall_back("gated_residual", NOT_WRITTEN)
            return result
        self._count(inplace=target is not None, saved=0 if target is None else target.nbytes)
        return self._mine(result)

    def _plain(
        self, inner: Residual, x: torch.Tensor, out: torch.Tensor, target: torch.Tensor | None
    ) -> torch.Tensor:
        if target is None:
            return self._mine(inner(x, out, None))
        self._count(inplace=True, saved=x.numel() * x.element_size())
        return target.add_(out)

    def _gated(
        self, x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor, target: torch.Tensor | None
    ) -> torch.Tensor:
        fresh = target is None
        target = torch.empty_like(x) if target is None else target
        rows = rows_at_once(x, self._scratch)
        add_in_pieces(target, x, out, gate, rows)
        self._count(inplace=not fresh, saved=bytes_avoided(x, rows, fresh))
        return self._mine(target)

    def _mine(self, made: torch.Tensor) -> torch.Tensor:
        self._own = weakref.ref(made)
        return made

    def _count(self, *, inplace: bool, saved: int) -> None:
        self.counters.add("inplace_adds" if inplace else "fresh_adds")
        self.counters.add("bytes_avoided", max(saved, 0))


def fused_modulation() -> FusedModulation | None:
    """The fused kernels of the session whose call this is, if it has them."""
    try:
        return cast("FusedModulation", serving("fused-modulation"))
    except RuntimeError:
        return None


def require_no_grad(*tensors: torch.Tensor | None) -> None:
    """Raises ``Ineligible`` where autograd would need what an addition in place overwrites."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise Ineligible(
            "gradients are recorded, and adding in place would overwrite what the backward pass needs"
        )


def in_stock_types(x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None) -> bool:
    """Whether the stock code gives a tensor like x: of its shape and dtype, by a sum in fp32 if there is a gate."""
    if x.ndim != 3 or out.shape != x.shape:
        return False
    if gate is None:
        return out.dtype == x.dtype
    fits = gate.ndim == 3 and gate.shape[1] in (1, x.shape[1]) and gate.shape[::2] == x.shape[::2]
    return fits and x.dtype != torch.float64 and torch.promote_types(out.dtype, gate.dtype) == torch.float32


def rows_at_once(x: torch.Tensor, scratch: int) -> int:
    """How many of the L rows of x ``[B, L, D]`` are summed at a time."""
    per_row = FP32 * x.shape[0] * x.shape[2]
    return max(1, min(MOST_ROWS, scratch // max(per_row, 1)))


def add_in_pieces(
    target: torch.Tensor, x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor, rows: int
) -> None:
    """``target = (x.float() + out * gate)`` in target's dtype; ``target`` may be x. ``[B, L, D]``, gate also
    ``[B, 1, D]``.

    Bit for bit what the stock expression gives: the same product and sum in fp32, each rounded once.
    """
    for begin in range(0, x.shape[1], rows):
        piece = slice(begin, begin + rows)
        factor = gate if gate.shape[1] == 1 else gate[:, piece]
        # no name for the sum, which would keep it while the next one is made
        target[:, piece].copy_((out[:, piece] * factor).add_(x[:, piece]))


def bytes_avoided(x: torch.Tensor, rows: int, fresh: bool) -> int:
    """Bytes that the stock expression allocates (the copy in fp32 and the result unless x is fp32, the product, the
    sum) less those allocated here (one piece, and the result if it is fresh).
    """
    size, half = x.numel(), x.dtype != torch.float32
    stock = size * (2 * FP32 + (FP32 + x.element_size() if half else 0))
    piece = FP32 * x.shape[0] * min(rows, x.shape[1]) * x.shape[2]
    return stock - piece - (size * x.element_size() if fresh else 0)
