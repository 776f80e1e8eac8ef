"""The open attention processor: those of both generations, written in the seams ``qkv``, ``rope`` and ``attention``.

Shapes: L image tokens, then S text tokens; H heads, D head size. Query, key and value are ``[B, L + S, H, D]`` in the
model's dtype, after the norms, and rotated where they are of image tokens: ``rope`` is called for the image tokens with
the tables, two ``[L, D]`` in fp32 with interleaved pairs, and for the text tokens, role ``text``, with None. The mask
is bool ``[B, 1, 1, L + S]``, True for keys that are attended to, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb

from wf_lib_family.sites import Wrap
from wf_plugin_hunyuan.stock import blocks_of

Norm = Callable[[torch.Tensor], torch.Tensor]
Tables = tuple[torch.Tensor, torch.Tensor]
Two = tuple[torch.Tensor, torch.Tensor]
"""Query and key ``[B, L, H * D]`` of one stream, as projected."""
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key and value, ``[B, L, H * D]`` as projected, ``[B, L, H, D]`` by heads."""


def project(attn: Any, x: torch.Tensor) -> Three:
    """Query, key and value ``[B, L, H * D]``: of the image stream, or of both where they have one projection."""
    return attn.to_q(x), attn.to_k(x), attn.to_v(x)


def _project_text(attn: Any, text: torch.Tensor) -> Three:
    """Query, key and value ``[B, S, H * D]`` of a text stream that has projections of its own."""
    return attn.add_q_proj(text), attn.add_k_proj(text), attn.add_v_proj(text)


def norm_and_rotate(
    query: torch.Tensor, key: torch.Tensor, norms: tuple[Norm, Norm], heads: int, tables: Tables | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits query and key ``[B, L, H * D]`` into heads, norms each head, and rotates interleaved pairs by the tables
    (cos, sin), if there are any.
    """
    query, key = norms[0](_by_heads(query, heads)), norms[1](_by_heads(key, heads))
    if tables is None:
        return query, key
    return apply_rotary_emb(query, tables, sequence_dim=1), apply_rotary_emb(key, tables, sequence_dim=1)


class OpenProcessor:
    """Stands in for one stock processor of the session's copy, and keeps its backend and parallel configuration.

    ``claimed`` tells whether anything claims this place; without a claim the stock processor can stay.
    """

    def __init__(self, stock: Any, wrap: Wrap, path: str, index: int) -> None:
        self._stock = stock
        self._attention_backend = stock._attention_backend
        self._parallel_config = stock._parallel_config
        own, here = self._dispatch, {"path": path, "index": index}
        self._attend = wrap("attention", own, role="joint", **here)
        self._project: Callable[..., Three] = wrap("qkv", project, role="joint", **here)
        self._rope = wrap("rope", norm_and_rotate, role="joint", **here)
        self._rope_text = wrap("rope", norm_and_rotate, role="text", **here)
        ropes = self._rope, self._rope_text
        self.claimed = (
            self._attend is not own
            or self._project is not project
            or any(rope is not norm_and_rotate for rope in ropes)
        )

    def close(self) -> Any:
        """Drop the seams, which refer back to this processor; returns the stock one."""
        del self._attend, self._project, self._rope, self._rope_text
        return self._stock

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        text = encoder_hidden_states.shape[1]
        query, key, value = self._both(attn, hidden_states, encoder_hidden_states, image_rotary_emb)
        out = self._attend(query, key, value, attention_mask).flatten(2, 3).to(query.dtype)
        image_out, text_out = out[:, :-text], out[:, -text:]
        if getattr(attn, "to_out", None) is not None:
            image_out = attn.to_out[1](attn.to_out[0](image_out))
        if getattr(attn, "to_add_out", None) is not None:
            text_out = attn.to_add_out(text_out)
        return image_out, text_out

    def _both(self, attn: Any, x: torch.Tensor, text: torch.Tensor, tables: Tables | None) -> Three:
        """Query, key and value ``[B, L + S, H, D]`` of both streams; the image alone is rotated."""
        own = attn.add_q_proj is not None
        image, beside, value = self._two_streams(attn, x, text) if own else self._one_stream(attn, x, text)
        norms = _norms(attn.norm_q, attn.norm_k)
        norms_text = _norms(attn.norm_added_q, attn.norm_added_k) if own else norms
        rotated = self._rope(*image, norms, attn.heads, tables)
        normed = self._rope_text(*beside, norms_text, attn.heads, None)
        query, key = (torch.cat(pair, dim=1) for pair in zip(rotated, normed, strict=True))
        return query, key, _by_heads(value, attn.heads)

    def _two_streams(self, attn: Any, x: torch.Tensor, text: torch.Tensor) -> tuple[Two, Two, torch.Tensor]:
        """Query and key of each stream, by projections of its own, and the value of both."""
        query, key, value = self._project(attn, x)
        text_query, text_key, text_value = _project_text(attn, text)
        return (query, key), (text_query, text_key), torch.cat([value, text_value], dim=1)

    def _one_stream(self, attn: Any, x: torch.Tensor, text: torch.Tensor) -> tuple[Two, Two, torch.Tensor]:
        """Query and key of each stream, by the same projections, and the value of both."""
        length = x.shape[1]
        query, key, value = self._project(attn, torch.cat([x, text], dim=1))
        return (query[:, :length], key[:, :length]), (query[:, length:], key[:, length:]), value

    def _dispatch(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        out: torch.Tensor = dispatch_attention_fn(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=0.0,
            is_causal=False,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        return out


def _by_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """``[B, L, H * D]`` -> ``[B, L, H, D]``."""
    return x.unflatten(2, (heads, -1))


def _norms(norm_q: Norm | None, norm_k: Norm | None) -> tuple[Norm, Norm]:
    """The norms of query and key; some models have none."""
    return _unchanged if norm_q is None else norm_q, _unchanged if norm_k is None else norm_k


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def open_attention(root: Any, wrap: Wrap, always: bool) -> bool:
    """Give the attention modules of the copy's blocks the open processor where anything is claimed, or with ``always``
    all of them as soon as one is claimed. Returns whether one is.
    """
    opened = [
        (block.attn, OpenProcessor(block.attn.processor, wrap, f"{path}.attn", index))
        for block, path, index in blocks_of(root)
    ]
    claimed = any(processor.claimed for _, processor in opened)
    for attn, processor in opened:
        if processor.claimed or (always and claimed):
            attn.processor = processor
    return claimed


def close_attention(attn: Any) -> None:
    """Give the stock processor back to an attention module of the copy that ``open_attention`` was given."""
    processor = getattr(attn, "processor", None)
    if isinstance(processor, OpenProcessor):
        attn.processor = processor.close()
