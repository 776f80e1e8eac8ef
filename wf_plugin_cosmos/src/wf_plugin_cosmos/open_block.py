"""The open block: the forward of ``CosmosTransformerBlock`` written in seam calls.

Shapes: x ``[B, L, D]``; shift, scale and gate ``[B, 1, D]``, or ``[B, L, D]`` with per-frame timesteps, all in the
model's dtype, or ``TokenRows`` in place of these for the features that made them. Each of the three sub-layers is
modulated and gated, from its own norm's layers: the embedded timestep ``[B, D]`` or ``[B, L, D]`` through them, plus
temb ``[B, 3 D]`` or ``[B, L, 3 D]``, which the blocks share; where both are ``TokenRows``, of one index, each row once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from wf_core.api import TokenRows, dense
from wf_lib_family.rows import Pass, Row
from wf_lib_family.sites import Wrap
from wf_lib_family.sublayers import BranchSublayer, FeedForwardSublayer, Stock, norm_modulate

Rows = tuple[Row, ...]
"""shift, scale, gate."""


def gated_residual(x: torch.Tensor, out: torch.Tensor, gate: Row) -> torch.Tensor:
    """``x + gate * out``."""
    return x + dense(gate) * out


STOCK = Stock(norm_modulate, gated_residual)


def modulation_rows(norm: Any, embedded: Row, temb: Row | None) -> Rows:
    """Shift, scale and gate of one sub-layer, from the layers of its norm."""
    if isinstance(embedded, TokenRows):
        assert temb is None or isinstance(temb, TokenRows)
        shared = modulation_rows(norm, embedded.values, None if temb is None else temb.values)
        return tuple(TokenRows(dense(row), embedded.index) for row in shared)
    rows = norm.linear_2(norm.linear_1(norm.activation(embedded)))
    if temb is not None:
        rows = rows + temb
    if rows.ndim == 2:
        rows = rows.unsqueeze(1)
    return tuple(rows.chunk(3, dim=-1))


def _attend_self(attn: Any, x: torch.Tensor, rotary_emb: Any) -> Any:
    return attn(x, image_rotary_emb=rotary_emb)


def _attend_cross(attn: Any, x: torch.Tensor, text: Any, mask: Any) -> Any:
    return attn(x, encoder_hidden_states=text, attention_mask=mask)


class OpenBlock:
    """``forward`` of one block of the copy, with the same parameters as the stock one."""

    def __init__(self, block: Any, wrap: Wrap, path: str, index: int, rows: Pass = dense) -> None:
        def site(norm: str, out: str, role: str) -> dict[str, Any]:
            return {"norm": f"{path}.{norm}", "out": f"{path}.{out}", "index": index, "role": role}

        self._block = block
        self._rows = rows
        attend_self, attend_cross = partial(_attend_self, block.attn1), partial(_attend_cross, block.attn2)
        self._self = BranchSublayer(attend_self, STOCK, wrap, **site("norm1", "attn1", "self"))
        self._cross = BranchSublayer(attend_cross, STOCK, wrap, **site("norm2", "attn2", "cross"))
        self._ffn = FeedForwardSublayer(block.ff, STOCK, wrap, **site("norm3", "ff", "ffn"))
        self.claimed = self._self.claimed or self._cross.claimed or self._ffn.claimed
        """Whether anything is claimed here; without a claim the stock forward can stay."""

    def __call__(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: Any,
        embedded_timestep: Row,
        temb: Row | None = None,
        image_rotary_emb: Any = None,
        extra_pos_emb: torch.Tensor | None = None,
        attention_mask: Any = None,
        controlnet_residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        block, x = self._block, hidden_states
        if extra_pos_emb is not None:
            x = x + extra_pos_emb
        shift, scale, gate = self._modulation(block.norm1, embedded_timestep, temb)
        y = self._self.norm(block.norm1.norm, x, scale, shift)
        x = self._self.add(x, self._self.branch(y, image_rotary_emb), gate)
        shift, scale, gate = self._modulation(block.norm2, embedded_timestep, temb)
        y = self._cross.norm(block.norm2.norm, x, scale, shift)
        x = self._cross.add(x, self._cross.branch(y, encoder_hidden_states, attention_mask), gate)
        shift, scale, gate = self._modulation(block.norm3, embedded_timestep, temb)
        y = self._ffn.norm(block.norm3.norm, x, scale, shift)
        x = self._ffn.add(x, self._ffn.branch(y), gate)
        # the stock block adds in place, which would write into a tensor that a handler has kept
        return x if controlnet_residual is None else x + controlnet_residual

    def _modulation(self, norm: Any, embedded: Row, temb: Row | None) -> Rows:
        """The rows of one sub-layer, in the form in which its seams are given them."""
        return tuple(self._rows(row) for row in modulation_rows(norm, embedded, temb))


def open_block(block: Any, wrap: Wrap, path: str, index: int, rows: Pass, always: bool) -> None:
    """Give one block of the copy the open forward, if anything is claimed at its sites, or ``always``."""
    opened = OpenBlock(block, wrap, path, index, rows)
    if always or opened.claimed:
        block.forward = opened
