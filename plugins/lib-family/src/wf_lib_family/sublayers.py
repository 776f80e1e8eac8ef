"""The seams of one sub-layer of a block: the modulated norm before its branch, the branch, the gated residual after.

What a sub-layer computes is its family's: norm and residual are handed over as ``Stock``, the branch as a module.
Shapes: x and out ``[B, L, D]``; shift, scale and gate as the family has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from wf_core.api import dense
from wf_lib_family.rows import Row
from wf_lib_family.sites import Span, Wrap


class Stock(NamedTuple):
    """A family's stock arithmetic: ``norm_modulate(norm, x, scale, shift)`` and ``gated_residual(x, out, gate)``."""

    norm_modulate: Callable[..., torch.Tensor]
    gated_residual: Callable[..., torch.Tensor]


def norm_modulate(
    norm: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    scale: Row,
    shift: Row,
) -> torch.Tensor:
    """``norm(x) * (1 + scale) + shift`` in the dtypes that these have."""
    return norm(x) * (1 + dense(scale)) + dense(shift)


def feed_forward(module: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The feed-forward module on x ``[B, L, D]``."""
    return module(x)


class Sublayer:
    """``norm`` and ``add``: the functions of ``stock`` behind ``norm_modulate`` at the path ``norm``, and behind
    ``gated_residual`` at the path ``out``.
    """

    def __init__(self, stock: Stock, wrap: Wrap, norm: str, out: str, **site: Any) -> None:
        self.norm = wrap("norm_modulate", stock.norm_modulate, path=norm, **site)
        self.add = wrap("gated_residual", stock.gated_residual, path=out, **site)
        self.claimed = self.norm is not stock.norm_modulate or self.add is not stock.gated_residual
        """Whether anything is claimed here; without a claim the stock forward can stay."""


class BranchSublayer(Sublayer):
    """A sub-layer with a branch of its own: ``branch(y, ...)``, behind the seam ``branch`` at the path ``out``."""

    def __init__(
        self, branch: Callable[..., Any], stock: Stock, wrap: Wrap, norm: str, out: str, **site: Any
    ) -> None:
        super().__init__(stock, wrap, norm, out, **site)
        self.branch = Span(branch, wrap, "branch", path=out, **site)
        self.claimed = self.claimed or self.branch.claimed


class FeedForwardSublayer(BranchSublayer):
    """A sub-layer whose branch is a feed-forward module, behind ``feed_forward`` and around that ``branch``."""

    def __init__(
        self, module: Callable[..., Any], stock: Stock, wrap: Wrap, norm: str, out: str, **site: Any
    ) -> None:
        feed = wrap("feed_forward", feed_forward, path=out, **site)
        branch = module if feed is feed_forward else partial(feed, module)
        super().__init__(branch, stock, wrap, norm, out, **site)
        self.claimed = self.claimed or feed is not feed_forward
