"""The open attention processors: ``CosmosAttnProcessor2_0`` and ``2_5`` written in the seams ``qkv``, ``rope`` and
``attention``.

Shapes: B batch, L query tokens, S key tokens, H heads, D head size. Query, key and value are ``[B, L, H, D]`` at the
seams and views of ``[B, H, L, D]``, in which the stock code norms and rotates; the rope tables are two ``[L, D]`` in
fp32, whose pairs are the halves of a head. The stock processors never name a backend, so the process's is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_cosmos import CosmosAttnProcessor2_0, CosmosAttnProcessor2_5

from wf_lib_family.sites import Wrap

Norm = Callable[[torch.Tensor], torch.Tensor]
Tables = tuple[torch.Tensor, torch.Tensor]


def project(attn: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value ``[B, L, H * D]`` of a self-attention."""
    return attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)


def norm_and_rotate(
    query: torch.Tensor, key: torch.Tensor, norms: tuple[Norm, Norm], heads: int, tables: Tables | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits query ``[B, Lq, H * D]`` and key ``[B, Lk, H * D]`` into heads, norms each head, and rotates the halves of
    each by the tables (cos, sin), if there are any.
    """
    query, key = norms[0](_heads_first(query, heads)), norms[1](_heads_first(key, heads))
    if tables is not None:
        query, key = (
            apply_rotary_emb(x, tables, use_real=True, use_real_unbind_dim=-2) for x in (query, key)
        )
    return query.transpose(1, 2), key.transpose(1, 2)


def dispatch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """The stock attention ``[B, L, H, D]``, with its copies of key and value: other strides may mean other bits."""
    key, value = (x.transpose(1, 2).repeat_interleave(1, dim=3).transpose(1, 2) for x in (key, value))
    out: torch.Tensor = dispatch_attention_fn(
        query, key, value, attn_mask=mask, dropout_p=0.0, is_causal=False
    )
    return out


def _heads_first(x: torch.Tensor, heads: int) -> torch.Tensor:
    """``[B, L, H * D]`` -> ``[B, H, L, D]``."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _project_out(attn: Any, out: torch.Tensor) -> torch.Tensor:
    projected: torch.Tensor = attn.to_out[1](attn.to_out[0](out))
    return projected


class _Sites:
    """The seams of one attention module; ``role`` is ``self`` or ``cross``. ``claimed`` tells whether any of them has a
    claim; without one the stock processor can stay.
    """

    def __init__(self, wrap: Wrap, path: str, index: int, role: str) -> None:
        here: dict[str, Any] = {"path": path, "index": index}
        self.attend = wrap("attention", dispatch, role=role, **here)
        self.rope = wrap("rope", norm_and_rotate, role=role, **here)
        self.project: Callable[..., tuple[torch.Tensor, ...]] = project
        if role == "self":
            self.project = wrap("qkv", project, role=role, **here)
        self.attend_image: Callable[..., torch.Tensor] = dispatch
        self.claimed = (
            self.attend is not dispatch or self.rope is not norm_and_rotate or self.project is not project
        )

    def open_image(self, wrap: Wrap, path: str, index: int) -> None:
        """The second attention of a cross-attention with image tokens: a site of its own, role ``image``."""
        self.attend_image = wrap("attention", dispatch, role="image", path=path, index=index)
        self.claimed = self.claimed or self.attend_image is not dispatch

    def text(
        self, attn: Any, hidden_states: torch.Tensor, context: torch.Tensor | None, mask: Any, tables: Any
    ) -> torch.Tensor:
        """Attention of the tokens to the context, or to themselves, before the output projection ``[B, L, H * D]``."""
        if context is None:
            query, key, value = self.project(attn, hidden_states)
        else:
            query, key, value = attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context)
        query, key = self.rope(query, key, (attn.norm_q, attn.norm_k), attn.heads, tables)
        value = value.unflatten(2, (attn.heads, -1))
        return self.attend(query, key, value, mask).flatten(2, 3).type_as(query)

    def image(self, attn: Any, hidden_states: torch.Tensor, context: torch.Tensor, mask: Any) -> torch.Tensor:
        """Attention to the image tokens, which has projections and norms of its own for all three."""
        query = attn.q_img_norm(_heads_first(attn.q_img(hidden_states), attn.heads)).transpose(1, 2)
        key = attn.k_img_norm(_heads_first(attn.k_img(context), attn.heads)).transpose(1, 2)
        value = attn.v_img(context).unflatten(2, (attn.heads, -1))
        return self.attend_image(query, key, value, mask).flatten(2, 3).type_as(query)


class OpenProcessor(CosmosAttnProcessor2_0):  # type: ignore[misc]
    """Stands in for one ``CosmosAttnProcessor2_0`` of the session's copy."""

    def __init__(self, stock: Any, sites: _Sites) -> None:
        super().__init__()
        self._stock = stock
        self._sites = sites

    def close(self) -> Any:
        """Drop the seams; returns the stock processor."""
        del self._sites
        return self._stock

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Tables | None = None,
    ) -> torch.Tensor:
        context, mask, tables = encoder_hidden_states, attention_mask, image_rotary_emb
        return _project_out(attn, self._sites.text(attn, hidden_states, context, mask, tables))


class OpenImageProcessor(CosmosAttnProcessor2_5):  # type: ignore[misc]
    """Stands in for one ``CosmosAttnProcessor2_5``, whose context is a pair: text tokens and image tokens or None."""

    def __init__(self, stock: Any, sites: _Sites) -> None:
        super().__init__()
        self._stock = stock
        self._sites = sites

    close = OpenProcessor.close

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: tuple[torch.Tensor, torch.Tensor],
        attention_mask: tuple[torch.Tensor, torch.Tensor],
        image_rotary_emb: Tables | None = None,
    ) -> torch.Tensor:
        if not isinstance(encoder_hidden_states, tuple):
            pair = "a model with image tokens takes the pair (text, image) as encoder_hidden_states"
            raise ValueError(pair)  # noqa: TRY004 (the stock processor's kind of error)
        text, image = encoder_hidden_states or (None, None)
        text_mask, image_mask = attention_mask or (None, None)
        out = self._sites.text(attn, hidden_states, text, text_mask, image_rotary_emb)
        if image is not None:
            out = out + self._sites.image(attn, hidden_states, image, image_mask)
        return _project_out(attn, out)


def open_attention(attn: Any, wrap: Wrap, path: str, index: int, role: str) -> None:
    """Give one attention module of the copy the open processor, if anything is claimed at its sites."""
    sites = _Sites(wrap, path, index, role)
    kind: type[Any] = OpenProcessor
    if isinstance(attn.processor, CosmosAttnProcessor2_5):
        sites.open_image(wrap, path, index)
        kind = OpenImageProcessor
    if sites.claimed:
        attn.processor = kind(attn.processor, sites)


def close_attention(attn: Any) -> None:
    """Give the stock processor back to an attention module of the copy that ``open_attention`` was given; a block of
    a user's own may have none.
    """
    processor = getattr(attn, "processor", None)
    if isinstance(processor, OpenProcessor | OpenImageProcessor):
        attn.processor = processor.close()
