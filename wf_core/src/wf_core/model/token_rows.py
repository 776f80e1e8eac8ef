"""Values that are the same for many tokens, kept once: the modulation of a model whose tokens have times of their own.

With per-token timesteps a Wan model computes six values per token and channel although all tokens of a frame, and most
frames, share one timestep: 2 GiB in fp32 at 27,280 tokens and a width of 3072, twice per block. With a timestep per
frame, a Cosmos model multiplies a row of every token by two weights in each of three norms per block: at a width of
2048, a tenth of the products of its linear layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class TokenRows:
    """``values`` ``[B, N, ...]`` for N distinct rows, and ``index`` ``[B, L]`` (int64), the row of each token.

    Stands for the tensor ``[B, L, ...]`` that ``dense()`` makes. Handed only to the features that made it: any other
    claim of the same seam makes the adapter pass the dense tensor.
    """

    __slots__ = ("index", "values")

    def __init__(self, values: torch.Tensor, index: torch.Tensor) -> None:
        if values.ndim < 3 or index.ndim != 2 or values.shape[0] != index.shape[0]:
            shapes = f"{tuple(values.shape)} and {tuple(index.shape)}"
            raise ValueError(f"TokenRows: values must be [B, N, ...] and index [B, L], got {shapes}")
        self.values = values
        self.index = index

    def __repr__(self) -> str:
        return f"TokenRows(values {tuple(self.values.shape)}, index {tuple(self.index.shape)})"

    @property
    def ndim(self) -> int:
        """The dimensions of the tensor that this stands for."""
        return self.values.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that this stands for."""
        return (*self.index.shape, *self.values.shape[2:])

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> TokenRows:
        """The same tokens with other values: ``change`` gets ``[B, N, ...]`` and may change what follows N."""
        return TokenRows(change(self.values), self.index)

    def dense(self) -> torch.Tensor:
        """The tensor ``[B, L, ...]``, bit for bit the rows' values."""
        batch, tokens = self.index.shape
        index = self.index.view(batch, tokens, *(1,) * (self.values.ndim - 2))
        return self.values.gather(1, index.expand(batch, tokens, *self.values.shape[2:]))


def dense(rows: torch.Tensor | TokenRows) -> torch.Tensor:
    """A tensor as it is, `TokenRows` written out."""
    return rows.dense() if isinstance(rows, TokenRows) else rows
