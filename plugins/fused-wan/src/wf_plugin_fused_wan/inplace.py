"""``inplace-residual``: the residuals of a block are added in pieces, into a tensor that belongs to the block.

The stock code makes the product with the gate and the sum, and in Wan a copy of the hidden states in fp32, each of the
whole size. Here only rows of one exist at a time, by the same arithmetic: in fp32 in Wan, in the model's own dtype in
Cosmos and HunyuanVideo. The first residual of a block, or of each stream of one, goes into a tensor of its own, because
its input may be kept by a cache; the others are written over that one, and over no other: a tensor that this feature
did not make itself is never written to.

Beside ``fused-modulation``, whose kernel makes nothing but the result, this feature is the outer one: it says which
tensor may be written to, and the kernel writes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import torch

from wf_core.api import Handler, Ineligible, RunView, Site, Technique, serving
from wf_plugin_fused_wan.arithmetic import in_fp32

if TYPE_CHECKING:
    from wf_plugin_fused_wan.modulation import FusedModulation

SCRATCH = 64 * 2**20
"""Bytes of products that are computed at a time."""
MOST_ROWS = 4096
NOT_WRITTEN = "the fused kernel could not write over this residual, which was added into a new tensor"
COMPILED = "no residual came here outside compiled code, where adding in place saves nothing"

Residual = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]


class InplaceResidual(Technique):
    """Counts ``inplace_adds``, ``fresh_adds`` (the first of a stream in a block) and ``bytes_avoided``, what the stock
    code, or the fused kernel where there is one, would have allocated more.
    """

    def __init__(self, scratch: int = SCRATCH, family: str = "wan") -> None:
        self._scratch = scratch
        self._in_fp32 = in_fp32(family)
        self._made = MadeInBlock()
        self._calls = 0
        self._fused: FusedModulation | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {"gated_residual": self._add}

    def begin(self, run: RunView) -> None:
        self._made, self._calls, self._fused = MadeInBlock(), 0, None

    def end(self) -> None:
        self._made, self._fused = MadeInBlock(), None

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
        if not in_stock_types(x, out, gate, self._in_fp32):
            self.counters.fall_back(
                "gated_residual", "the residual is not of the hidden states' size and dtype"
            )
            return inner(x, out, gate)
        self._made.come_to(site)
        target = x if self._made.before(x) else None
        if self._fused is not None:
            return self._by_kernel(self._fused, inner, x, out, gate, target)
        if gate is None:
            return self._plain(inner, x, out, target)
        return self._gated(x, out, gate, target)

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
        return self._made.add(result) if target is None else result

    def _plain(
        self, inner: Residual, x: torch.Tensor, out: torch.Tensor, target: torch.Tensor | None
    ) -> torch.Tensor:
        if target is None:
            return self._made.add(inner(x, out, None))
        self._count(inplace=True, saved=x.numel() * x.element_size())
        return target.add_(out)

    def _gated(
        self, x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor, target: torch.Tensor | None
    ) -> torch.Tensor:
        fresh = target is None
        target = torch.empty_like(x) if target is None else target
        dtype = torch.float32 if self._in_fp32 else x.dtype
        rows = rows_at_once(x, self._scratch, dtype)
        add_in_pieces(target, x, out, gate, rows)
        self._count(inplace=not fresh, saved=bytes_avoided(x, rows, fresh, dtype))
        return self._made.add(target) if fresh else target

    def _count(self, *, inplace: bool, saved: int) -> None:
        self.counters.add("inplace_adds" if inplace else "fresh_adds")
        self.counters.add("bytes_avoided", max(saved, 0))


class MadeInBlock:
    """What the residuals of the block that is being computed have made; it keeps nothing alive.

    A block is over when a residual of another one comes, or one of its own that is not the last again: the tokens of a
    stream may come in several parts, one after another.
    """

    def __init__(self) -> None:
        self._block: tuple[str, ...] = ()
        self._sites: list[tuple[str, str]] = []
        self._tensors: list[tuple[weakref.ref[torch.Tensor], tuple[str, str]]] = []

    def come_to(self, site: Site) -> None:
        """A residual is to be computed at ``site``."""
        block = (site.root, *site.path.split(".", 2)[:2])  # a list of blocks, and the place in it
        here = (site.path, site.role)
        if self._sites and block == self._block and here == self._sites[-1]:
            return
        if block != self._block or here in self._sites:
            self._block = block
            self._sites.clear()
            self._tensors.clear()
        self._sites.append(here)

    def before(self, x: torch.Tensor) -> bool:
        """Whether x was made at an earlier site of the block."""
        here = self._sites[-1]
        return any(made() is x and where != here for made, where in self._tensors)

    def add(self, made: torch.Tensor) -> torch.Tensor:
        """What was made at the site that was come to last; returns it."""
        self._tensors.append((weakref.ref(made), self._sites[-1]))
        return made


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


def in_stock_types(x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None, fp32: bool) -> bool:
    """Whether the stock code gives a tensor like x: of its shape and dtype, by a product and a sum in fp32, or else in
    x's own dtype, if there is a gate.
    """
    if x.ndim != 3 or out.shape != x.shape:
        return False
    if gate is None:
        return out.dtype == x.dtype
    if gate.ndim != 3 or gate.shape[1] not in (1, x.shape[1]) or gate.shape[::2] != x.shape[::2]:
        return False
    if not fp32:
        return x.dtype == out.dtype == gate.dtype
    return x.dtype != torch.float64 and torch.promote_types(out.dtype, gate.dtype) == torch.float32


def rows_at_once(x: torch.Tensor, scratch: int, dtype: torch.dtype = torch.float32) -> int:
    """How many of the L rows of x ``[B, L, D]`` are summed at a time in ``dtype``."""
    per_row = dtype.itemsize * x.shape[0] * x.shape[2]
    return max(1, min(MOST_ROWS, scratch // max(per_row, 1)))


def add_in_pieces(
    target: torch.Tensor, x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor, rows: int
) -> None:
    """``target = x + out * gate`` in target's dtype, the sum in that of the product; ``target`` may be x.
    ``[B, L, D]``, gate also ``[B, 1, D]``.

    Bit for bit what the stock expression gives: the same product and sum, each rounded once, to fp32 where the gate is
    in fp32, and to the model's dtype where all three are.
    """
    for begin in range(0, x.shape[1], rows):
        piece = slice(begin, begin + rows)
        factor = gate if gate.shape[1] == 1 else gate[:, piece]
        # no name for the sum, which would keep it while the next one is made
        target[:, piece].copy_((out[:, piece] * factor).add_(x[:, piece]))


def bytes_avoided(x: torch.Tensor, rows: int, fresh: bool, dtype: torch.dtype = torch.float32) -> int:
    """Bytes that the stock expression allocates (product and sum in ``dtype`` and, unless x is of it, a copy of x in it
    and the result) less those allocated here (one piece, and the result if it is fresh).
    """
    size, each = x.numel(), dtype.itemsize
    stock = size * (2 * each + (each + x.element_size() if x.dtype != dtype else 0))
    piece = each * x.shape[0] * min(rows, x.shape[1]) * x.shape[2]
    return stock - piece - (size * x.element_size() if fresh else 0)
