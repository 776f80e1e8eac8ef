"""The open block: the forwards of ``WanTransformerBlock`` and ``WanVACETransformerBlock`` written in seam calls.

Shapes: x ``[B, L, D]`` in the model's dtype; shift, scale and gate ``[B, 1, D]``, or ``[B, L, D]`` with per-token
timesteps, in fp32, or ``TokenRows`` in place of these for the features that made them. The cross-attention has neither:
its ``norm_modulate`` is called with scale and shift None and its ``gated_residual`` with gate None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from wf_core.api import TokenRows, dense
from wf_lib_family.rows import Pass, Row
from wf_lib_family.sites import Wrap
from wf_lib_family.sublayers import BranchSublayer, FeedForwardSublayer, Stock

Rows = tuple[Row, ...]
"""shift, scale, gate of the self-attention, then of the feed-forward."""


def norm_modulate(
    norm: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    scale: Row | None,
    shift: Row | None,
) -> torch.Tensor:
    """``norm(x) * (1 + scale) + shift`` in fp32, returned in x's dtype; only the norm when scale is None."""
    if scale is None or shift is None:
        return norm(x.float()).type_as(x)
    return (norm(x.float()) * (1 + dense(scale)) + dense(shift)).type_as(x)


def gated_residual(x: torch.Tensor, out: torch.Tensor, gate: Row | None) -> torch.Tensor:
    """``x + out * gate`` in fp32, returned in x's dtype; ``x + out`` in x's dtype when gate is None."""
    if gate is None:
        return x + out
    return (x.float() + out * dense(gate)).type_as(x)


STOCK = Stock(norm_modulate, gated_residual)


def modulation_rows(table: torch.Tensor, temb: Row) -> Rows:
    """The six fp32 rows of ``table`` ``[1, 6, D]`` plus the time signal ``[B, 6, D]`` or ``[B, L, 6, D]``."""
    if isinstance(temb, TokenRows):
        return tuple(TokenRows(row, temb.index) for row in modulation_rows(table, temb.values))
    if temb.ndim == 4:
        return tuple(row.squeeze(2) for row in (table.unsqueeze(0) + temb.float()).chunk(6, dim=2))
    return (table.to(temb.device) + temb.float()).chunk(6, dim=1)


class OpenBlock:
    """``forward`` of one ``WanTransformerBlock`` of the copy, with the same parameters as the stock one."""

    def __init__(self, block: Any, wrap: Wrap, path: str, index: int, rows: Pass = dense) -> None:
        def site(norm: str, out: str, role: str) -> dict[str, Any]:
            return {"norm": f"{path}.{norm}", "out": f"{path}.{out}", "index": index, "role": role}

        self._block = block
        self._rows = rows
        self._self = BranchSublayer(block.attn1, STOCK, wrap, **site("norm1", "attn1", "self"))
        self._cross = BranchSublayer(block.attn2, STOCK, wrap, **site("norm2", "attn2", "cross"))
        self._ffn = FeedForwardSublayer(block.ffn, STOCK, wrap, **site("norm3", "ffn", "ffn"))
        self.claimed = self._self.claimed or self._cross.claimed or self._ffn.claimed
        """Whether anything is claimed here; without a claim the stock forward can stay."""

    def __call__(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: Row,
        rotary_emb: Any,
    ) -> Any:
        return self._layers(hidden_states, encoder_hidden_states, temb, rotary_emb)

    def _layers(self, x: torch.Tensor, text: torch.Tensor, temb: Row, rotary_emb: Any) -> torch.Tensor:
        block, rows = self._block, modulation_rows(self._block.scale_shift_table, temb)
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = (self._rows(row) for row in rows)
        y = self._self.norm(block.norm1, x, scale, shift)
        x = self._self.add(x, self._self.branch(y, None, None, rotary_emb), gate)
        y = self._cross.norm(block.norm2, x, None, None)
        x = self._cross.add(x, self._cross.branch(y, text, None, None), None)
        y = self._ffn.norm(block.norm3, x, ffn_scale, ffn_shift)
        out: torch.Tensor = self._ffn.add(x, self._ffn.branch(y), ffn_gate)
        return out


class OpenVaceBlock(OpenBlock):
    """``forward`` of one ``WanVACETransformerBlock``: the same layers on the control stream, and a hint beside it."""

    def __call__(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        control_hidden_states: torch.Tensor,
        temb: Row,
        rotary_emb: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        block = self._block
        if block.proj_in is not None:
            control_hidden_states = block.proj_in(control_hidden_states) + hidden_states
        control = self._layers(control_hidden_states, encoder_hidden_states, temb, rotary_emb)
        return (None if block.proj_out is None else block.proj_out(control)), control


def open_block(block: Any, wrap: Wrap, path: str, index: int, rows: Pass, always: bool) -> None:
    """Give one block of the copy the open forward, if anything is claimed at its sites, or ``always``."""
    kind = OpenVaceBlock if hasattr(block, "proj_out") else OpenBlock
    opened = kind(block, wrap, path, index, rows)
    if always or opened.claimed:
        block.forward = opened
