"""The open blocks: the forwards of the blocks of both generations written in seam calls.

Shapes: L image tokens, S text tokens; x ``[B, L, D]``, text ``[B, S, D]``, and in single-stream blocks both as one
tensor ``[B, L + S, D]``, image tokens first; shift, scale and gate ``[B, 1, D]``, all in the model's dtype. Where the
first frame is replaced, its tokens have rows of their own: ``norm_modulate`` and ``gated_residual`` of the stream that
holds them are called once for these tokens and once for the others.

A handler of ``branch`` sees one tensor, so a joint attention is given both streams as one, as ``block`` is, and in a
single-stream block the branch is all that is behind its one gate: attention and MLP with their common projection.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from wf_lib_family.sites import Span, Wrap
from wf_lib_family.sublayers import BranchSublayer, FeedForwardSublayer, Stock, Sublayer, norm_modulate
from wf_plugin_hunyuan.stock import blocks_of


class Part(NamedTuple):
    """Tokens of a stream, None for all, and the rows that they have in one sub-layer."""

    tokens: slice | None
    shift: torch.Tensor
    scale: torch.Tensor
    gate: torch.Tensor

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Its tokens of ``[B, L, D]``."""
        return x if self.tokens is None else x[:, self.tokens]


Parts = tuple[Part, ...]
Signals = tuple[tuple[slice | None, torch.Tensor], ...]
"""Tokens of a stream, None for all, and their time signal ``[B, D]``."""


def gated_residual(x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x + out * gate``."""
    return x + out * gate


STOCK = Stock(norm_modulate, gated_residual)


def signals_of(temb: torch.Tensor, first_temb: torch.Tensor | None, first_frame: int | None) -> Signals:
    """The time signals of a stream; ``first_temb`` is that of the first ``first_frame`` tokens, if these have one."""
    if first_temb is None:
        return ((None, temb),)
    return ((slice(None, first_frame), first_temb), (slice(first_frame, None), temb))


def parts_of(norm: Any, signals: Signals, sublayers: int) -> tuple[Parts, ...]:
    """The parts of a stream, for each sub-layer that the layers of ``norm`` make three rows for."""
    rows = [norm.linear(norm.silu(temb)).unsqueeze(1).chunk(3 * sublayers, dim=-1) for _, temb in signals]
    return tuple(
        tuple(Part(tokens, *row[3 * n : 3 * n + 3]) for (tokens, _), row in zip(signals, rows, strict=True))
        for n in range(sublayers)
    )


def _norm(sublayer: Sublayer, norm: Any, x: torch.Tensor, parts: Parts) -> torch.Tensor:
    """A stream on its way into a branch, each part of it with its own rows."""
    return _joined([sublayer.norm(norm, part.of(x), part.scale, part.shift) for part in parts])


def _add(sublayer: Sublayer, x: torch.Tensor, out: torch.Tensor, parts: Parts) -> torch.Tensor:
    """A stream with what its branch gave added to it."""
    return _joined([sublayer.add(part.of(x), part.of(out), part.gate) for part in parts])


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class _Stream:
    """One stream of a two-stream block, the text's where ``suffix`` is ``_context``: everything but the attention.

    A feed-forward module stands behind ``feed_forward``, and both behind ``branch``.
    """

    def __init__(self, block: Any, wrap: Wrap, path: str, index: int, suffix: str = "") -> None:
        def site(norm: str, out: str, role: str) -> dict[str, Any]:
            role = "text" if suffix else role
            return {"norm": f"{path}.{norm}{suffix}", "out": f"{path}.{out}", "index": index, "role": role}

        self._norm1, self._norm2 = getattr(block, f"norm1{suffix}"), getattr(block, f"norm2{suffix}")
        out, ff = "attn.to_add_out" if suffix else "attn", f"ff{suffix}"
        self._attention = Sublayer(STOCK, wrap, **site("norm1", out, "joint"))
        self._ffn = FeedForwardSublayer(getattr(block, ff), STOCK, wrap, **site("norm2", ff, "ffn"))
        self.claimed = self._attention.claimed or self._ffn.claimed

    def before(self, x: torch.Tensor, signals: Signals) -> tuple[torch.Tensor, tuple[Parts, ...]]:
        """What goes into the attention, and the parts of both sub-layers."""
        parts = parts_of(self._norm1, signals, 2)
        return _norm(self._attention, self._norm1.norm, x, parts[0]), parts

    def after(self, x: torch.Tensor, attended: torch.Tensor, parts: tuple[Parts, ...]) -> torch.Tensor:
        """What follows the attention, which gave ``attended``."""
        x = _add(self._attention, x, attended, parts[0])
        y = _norm(self._ffn, self._norm2, x, parts[1])
        return _add(self._ffn, x, self._ffn.branch(y), parts[1])


class _JointAttention:
    """An attention module on both streams as one tensor: ``(joint, length, ...)``; ``length`` counts image tokens.

    The streams are handed on as the stock block has them: a linear layer may give other bits on strided tokens.
    """

    def __init__(self, attn: Any) -> None:
        self._attn = attn

    def __call__(self, joint: torch.Tensor, length: int, mask: Any, tables: Any) -> torch.Tensor:
        y, text = joint[:, :length].contiguous(), joint[:, length:].contiguous()
        return torch.cat(_attend(self._attn, y, text, mask, tables), dim=1)


def _attend(
    attn: Any, y: torch.Tensor, text: torch.Tensor, mask: Any, tables: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    out: tuple[torch.Tensor, torch.Tensor] = attn(
        hidden_states=y, encoder_hidden_states=text, attention_mask=mask, image_rotary_emb=tables
    )
    return out


class OpenBlock:
    """``forward`` of a two-stream block of the copy, with the same parameters as the stock one; where no first frame is
    replaced, the last two mean nothing.
    """

    def __init__(self, block: Any, wrap: Wrap, path: str, index: int) -> None:
        self._attn = block.attn
        self._image = _Stream(block, wrap, path, index)
        self._text = _Stream(block, wrap, path, index, "_context")
        joint, site = _JointAttention(block.attn), {"path": f"{path}.attn", "index": index, "role": "joint"}
        self._joint = Span(joint, wrap, "branch", **site)
        self.claimed = self._image.claimed or self._text.claimed or self._joint.claimed
        """Whether anything is claimed here; without a claim the stock forward can stay."""

    def __call__(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        freqs_cis: tuple[torch.Tensor, torch.Tensor] | None = None,
        token_replace_emb: torch.Tensor | None = None,
        num_tokens: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, text = hidden_states, encoder_hidden_states
        y, parts = self._image.before(x, signals_of(temb, token_replace_emb, num_tokens))
        text_y, text_parts = self._text.before(text, signals_of(temb, None, None))
        out, text_out = self._attended(y, text_y, attention_mask, freqs_cis)
        return self._image.after(x, out, parts), self._text.after(text, text_out, text_parts)

    def _attended(
        self, y: torch.Tensor, text: torch.Tensor, mask: Any, tables: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._joint.claimed:
            return _attend(self._attn, y, text, mask, tables)
        length = y.shape[1]
        out = self._joint(torch.cat([y, text], dim=1), length, mask, tables)
        return out[:, :length], out[:, length:]


class _SingleBranch:
    """What is behind the gate of a single-stream block: ``(y, length, ...)``; ``length`` counts text tokens."""

    def __init__(self, block: Any) -> None:
        self._block = block

    def __call__(self, y: torch.Tensor, length: int, mask: Any, tables: Any) -> torch.Tensor:
        block = self._block
        mlp = block.act_mlp(block.proj_mlp(y))
        attended = torch.cat(_attend(block.attn, y[:, :-length], y[:, -length:], mask, tables), dim=1)
        out: torch.Tensor = block.proj_out(torch.cat([attended, mlp], dim=2))
        return out


class OpenSingleBlock:
    """``forward`` of a single-stream block of the copy, with the same parameters as the stock one."""

    def __init__(self, block: Any, wrap: Wrap, path: str, index: int) -> None:
        site: dict[str, Any] = {"index": index, "role": "joint"}
        self._norm = block.norm
        norm, out = f"{path}.norm", f"{path}.proj_out"
        self._sublayer = BranchSublayer(_SingleBranch(block), STOCK, wrap, norm, out, **site)
        self.claimed = self._sublayer.claimed

    def __call__(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        token_replace_emb: torch.Tensor | None = None,
        num_tokens: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        length = encoder_hidden_states.shape[1]
        x = torch.cat([hidden_states, encoder_hidden_states], dim=1)
        (parts,) = parts_of(self._norm, signals_of(temb, token_replace_emb, num_tokens), 1)
        y = _norm(self._sublayer, self._norm.norm, x, parts)
        out = self._sublayer.branch(y, length, attention_mask, image_rotary_emb)
        x = _add(self._sublayer, x, out, parts)
        return x[:, :-length], x[:, -length:]


def open_blocks(root: Any, wrap: Wrap) -> None:
    """Give each block of the copy the open forward, where anything is claimed at its sites."""
    for block, path, index in blocks_of(root):
        kind = OpenBlock if hasattr(block, "norm1_context") else OpenSingleBlock
        opened = kind(block, wrap, path, index)
        if opened.claimed:
            block.forward = opened
