"""The open attention processor: those of both generations, written with the seams ``qkv`` and ``attention``.

Shapes: L image tokens, then S text tokens; H heads, D head size. Query, key and value are ``[B, L + S, H, D]`` in the
model's dtype, after the norms, and rotated where they are of image tokens. The mask is bool ``[B, 1, 1, L + S]``, True
for keys that are attended to, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb

from wf_lib_family.sites import Wrap
from wf_plugin_hunyuan.stock import blocks_of

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key and value, ``[B, L, H * D]`` as projected, ``[B, L, H, D]`` by heads."""


def project(attn: Any, x: torch.Tensor) -> Three:
    """Query, key and value ``[B, L, H * D]``: of the image stream, or of both where they have one projection."""
    return attn.to_q(x), attn.to_k(x), attn.to_v(x)


def _project_text(attn: Any, text: torch.Tensor) -> Three:
    """Query, key and value ``[B, S, H * D]`` of a text stream that has projections of its own."""
    return attn.add_q_proj(text), attn.add_k_proj(text), attn.add_v_proj(text)


class OpenProcessor:
    """Stands in for one stock processor of the session's copy, and keeps its backend and parallel configuration.

    ``claimed`` tells whether anything claims this place; without a claim the stock processor can stay.
    """

    def __init__(self, stock: Any, wrap: Wrap, path: str, index: int) -> None:
        self._stock = stock
        self._attention_backend = stock._attention_backend
        self._parallel_config = stock._parallel_config
        own = self._dispatch
        self._attend = wrap("attention", own, role="joint", path=path, index=index)
        self._project: Callable[..., Three] = wrap("qkv", project, role="joint", path=path, index=index)
        self.claimed = self._attend is not own or self._project is not project

    def close(self) -> Any:
        """Drop the seams, which refer back to this processor; returns the stock one."""
        del self._attend, self._project
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
        streams = self._one_stream if attn.add_q_proj is None else self._two_streams
        query, key, value = streams(attn, hidden_states, encoder_hidden_states, image_rotary_emb)
        out = self._attend(query, key, value, attention_mask).flatten(2, 3).to(query.dtype)
        image_out, text_out = out[:, :-text], out[:, -text:]
        if getattr(attn, "to_out", None) is not None:
            image_out = attn.to_out[1](attn.to_out[0](image_out))
        if getattr(attn, "to_add_out", None) is not None:
            text_out = attn.to_add_out(text_out)
        return image_out, text_out

    def _two_streams(self, attn: Any, image: torch.Tensor, text: torch.Tensor, tables: Any) -> Three:
        """Projections of their own for each stream; the image alone is rotated."""
        query, key, value = _by_heads(attn, self._project(attn, image), (attn.norm_q, attn.norm_k))
        rotated = _rotate(query, tables), _rotate(key, tables), value
        norms = attn.norm_added_q, attn.norm_added_k
        pairs = zip(rotated, _by_heads(attn, _project_text(attn, text), norms), strict=True)
        query, key, value = (torch.cat(pair, dim=1) for pair in pairs)
        return query, key, value

    def _one_stream(self, attn: Any, image: torch.Tensor, text: torch.Tensor, tables: Any) -> Three:
        """The same projections for both streams; the image alone is rotated."""
        both, length = torch.cat([image, text], dim=1), image.shape[1]
        query, key, value = _by_heads(attn, self._project(attn, both), (attn.norm_q, attn.norm_k))
        query, key = (
            torch.cat([_rotate(part[:, :length], tables), part[:, length:]], dim=1) for part in (query, key)
        )
        return query, key, value

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


def _by_heads(attn: Any, projected: Three, norms: tuple[Any, Any]) -> Three:
    """Split into heads ``[B, L, H, D]``; query and key normed, where the model does."""
    query, key, value = (
        part.unflatten(2, (attn.heads, -1))  # type: ignore[no-untyped-call]
        for part in projected
    )
    norm_q, norm_k = norms
    return query if norm_q is None else norm_q(query), key if norm_k is None else norm_k(key), value


def _rotate(x: torch.Tensor, tables: Any) -> torch.Tensor:
    if tables is None:
        return x
    rotated: torch.Tensor = apply_rotary_emb(x, tables, sequence_dim=1)
    return rotated


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
