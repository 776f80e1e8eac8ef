"""The open block: the forward of ``CosmosTransformerBlock`` written in seam calls.

Shapes: x ``[B, L, D]``; shift, scale and gate ``[B, 1, D]``, or ``[B, L, D]`` with per-frame timesteps, all in the
model's dtype. Each of the three sub-layers is modulated and gated, from its own norm's layers: the embedded timestep
``[B, D]`` or ``[B, L, D]`` through them, plus temb ``[B, 3 D]`` or ``[B, L, 3 D]``, which the blocks share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from wf_lib_family.sites import Span, Wrap

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""shift, scale, gate."""


def norm_modulate(
    norm: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
) -> torch.Tensor:
    """``norm(x) * (1 + scale) + shift``."""
    return norm(x) * (1 + scale) + shift


def gated_residual(x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x + gate * out``."""
    return x + gate * out


def feed_forward(module: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The feed-forward module on x ``[B, L, D]``."""
    return module(x)


def modulation_rows(norm: Any, embedded: torch.Tensor, temb: torch.Tensor | None) -> Rows:
    """Shift, scale and gate of one sub-layer, from the layers of its norm."""
    rows = norm.linear_2(norm.linear_1(norm.activation(embedded)))
    if temb is not None:
        rows = rows + temb
    shift, scale, gate = rows.chunk(3, dim=-1)
    if rows.ndim == 2:
        shift, scale, gate = (row.unsqueeze(1) for row in (shift, scale, gate))
    return shift, scale, gate


def _attend_self(attn: Any, x: torch.Tensor, rotary_emb: Any) -> Any:
    return attn(x, image_rotary_emb=rotary_emb)


def _attend_cross(attn: Any, x: torch.Tensor, text: Any, mask: Any) -> Any:
    return attn(x, encoder_hidden_states=text, attention_mask=mask)


class OpenBlock:
    """``forward`` of one block of the copy, with the same parameters as the stock one."""

    def __init__(self, block: Any, wrap: Wrap, path: str, index: int) -> None:
        def site(name: str, role: str) -> dict[str, Any]:
            return {"path": f"{path}.{name}", "index": index, "role": role}

        self._block = block
        attend_self, attend_cross = partial(_attend_self, block.attn1), partial(_attend_cross, block.attn2)
        self._attend_self = Span(attend_self, wrap, "branch", **site("attn1", "self"))
        self._attend_cross = Span(attend_cross, wrap, "branch", **site("attn2", "cross"))
        feed = wrap("feed_forward", feed_forward, **site("ff", "ffn"))
        ff = block.ff if feed is feed_forward else partial(feed, block.ff)
        self._feed_forward = Span(ff, wrap, "branch", **site("ff", "ffn"))
        self._norm_self = wrap("norm_modulate", norm_modulate, **site("norm1", "self"))
        self._norm_cross = wrap("norm_modulate", norm_modulate, **site("norm2", "cross"))
        self._norm_ffn = wrap("norm_modulate", norm_modulate, **site("norm3", "ffn"))
        self._add_self = wrap("gated_residual", gated_residual, **site("attn1", "self"))
        self._add_cross = wrap("gated_residual", gated_residual, **site("attn2", "cross"))
        self._add_ffn = wrap("gated_residual", gated_residual, **site("ff", "ffn"))
        spans = (self._attend_self, self._attend_cross, self._feed_forward)
        norms = (self._norm_self, self._norm_cross, self._norm_ffn)
        adds = (self._add_self, self._add_cross, self._add_ffn)
        self.claimed = (
            feed is not feed_forward
            or any(span.claimed for span in spans)
            or any(norm is not norm_modulate for norm in norms)
            or any(add is not gated_residual for add in adds)
        )
        """Whether anything is claimed here; without a claim the stock forward can stay."""

    def __call__(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: Any,
        embedded_timestep: torch.Tensor,
        temb: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
        extra_pos_emb: torch.Tensor | None = None,
        attention_mask: Any = None,
        controlnet_residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        block, x = self._block, hidden_states
        if extra_pos_emb is not None:
            x = x + extra_pos_emb
        shift, scale, gate = modulation_rows(block.norm1, embedded_timestep, temb)
        y = self._norm_self(block.norm1.norm, x, scale, shift)
        x = self._add_self(x, self._attend_self(y, image_rotary_emb), gate)
        shift, scale, gate = modulation_rows(block.norm2, embedded_timestep, temb)
        y = self._norm_cross(block.norm2.norm, x, scale, shift)
        x = self._add_cross(x, self._attend_cross(y, encoder_hidden_states, attention_mask), gate)
        shift, scale, gate = modulation_rows(block.norm3, embedded_timestep, temb)
        y = self._norm_ffn(block.norm3.norm, x, scale, shift)
        x = self._add_ffn(x, self._feed_forward(y), gate)
        # the stock block adds in place, which would write into a tensor that a handler has kept
        return x if controlnet_residual is None else x + controlnet_residual


def open_block(block: Any, wrap: Wrap, path: str, index: int) -> None:
    """Give one block of the copy the open forward, if anything is claimed at its sites."""
    opened = OpenBlock(block, wrap, path, index)
    if opened.claimed:
        block.forward = opened


def close_block(block: Any) -> None:
    """Take the open forward away, which refers to the block that refers to it."""
    block.__dict__.pop("forward", None)
