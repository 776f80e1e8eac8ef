"""The open attention processor: ``WanAttnProcessor`` written in the seams ``qkv``, ``rope`` and ``attention``.

Shapes: B batch, L query tokens, S key tokens, H heads, D head size. Everything between the projections and the output
projection is ``[B, L, H, D]`` in the model's dtype; the rope tables are two ``[1, L, 1, D]`` in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers import transformer_wan
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from wf_lib_family.sites import Wrap
from wf_plugin_wan.stock import TEXT_TOKENS

Norm = Callable[[torch.Tensor], torch.Tensor]
Tables = tuple[torch.Tensor, torch.Tensor]


def project(attn: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value ``[B, L, H * D]`` of a self-attention."""
    projected: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = transformer_wan._get_qkv_projections(
        attn, hidden_states, None
    )
    return projected


def norm_and_rotate(
    query: torch.Tensor, key: torch.Tensor, norms: tuple[Norm, Norm], heads: int, tables: Tables | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms query ``[B, Lq, H * D]`` and key ``[B, Lk, H * D]`` over all heads, splits them into heads, and rotates
    interleaved pairs by the tables (cos, sin), if there are any.
    """
    query = norms[0](query).unflatten(2, (heads, -1))
    key = norms[1](key).unflatten(2, (heads, -1))
    return (query, key) if tables is None else (_rotate(query, *tables), _rotate(key, *tables))


def _rotate(x: torch.Tensor, freqs_cos: torch.Tensor, freqs_sin: torch.Tensor) -> torch.Tensor:
    x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos = freqs_cos[..., 0::2]
    sin = freqs_sin[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = x1 * cos - x2 * sin
    out[..., 1::2] = x1 * sin + x2 * cos
    return out.type_as(x)


class OpenProcessor(WanAttnProcessor):  # type: ignore[misc]
    """Stands in for one ``WanAttnProcessor`` of the session's copy; ``role`` is ``self`` or ``cross``.

    Keeps the stock one's ``_attention_backend`` and ``_parallel_config``. ``claimed`` tells whether any seam of this
    place has a claim; without one the stock processor can stay.
    """

    def __init__(self, stock: WanAttnProcessor, wrap: Wrap, path: str, index: int, role: str) -> None:
        super().__init__()
        self._stock = stock
        self._attention_backend = stock._attention_backend
        self._parallel_config = stock._parallel_config
        here: dict[str, Any] = {"path": path, "index": index}
        own, image = self._dispatch_self if role == "self" else self._dispatch, self._dispatch
        self._attend = wrap("attention", own, role=role, **here)
        self._attend_image: Callable[..., torch.Tensor] = image
        self._rope = wrap("rope", norm_and_rotate, role=role, **here)
        self._project: Callable[..., tuple[torch.Tensor, ...]] = project
        if role == "self":
            self._project = wrap("qkv", project, role=role, **here)
        self.claimed = (
            self._attend is not own or self._rope is not norm_and_rotate or self._project is not project
        )

    def open_image(self, wrap: Wrap, path: str, index: int) -> None:
        """The second attention of a cross-attention with image tokens: a site of its own, role ``image``."""
        stock = self._attend_image
        self._attend_image = wrap("attention", stock, role="image", path=path, index=index)
        self.claimed = self.claimed or self._attend_image is not stock

    def close(self) -> WanAttnProcessor:
        """Drop the seams, which refer back to this processor; returns the stock one."""
        del self._attend, self._attend_image, self._rope, self._project
        return self._stock

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        image_context = None
        if attn.add_k_proj is not None:
            assert encoder_hidden_states is not None
            image_tokens = encoder_hidden_states.shape[1] - TEXT_TOKENS
            image_context = encoder_hidden_states[:, :image_tokens]
            encoder_hidden_states = encoder_hidden_states[:, image_tokens:]

        if encoder_hidden_states is None:
            query, key, value = self._project(attn, hidden_states)
        else:
            query, key, value = transformer_wan._get_qkv_projections(
                attn, hidden_states, encoder_hidden_states
            )
        query, key = self._rope(query, key, (attn.norm_q, attn.norm_k), attn.heads, rotary_emb)
        value = value.unflatten(2, (attn.heads, -1))

        image_out = None
        if image_context is not None:
            key_image, value_image = transformer_wan._get_added_kv_projections(attn, image_context)
            key_image = attn.norm_added_k(key_image).unflatten(2, (attn.heads, -1))
            value_image = value_image.unflatten(2, (attn.heads, -1))
            image_out = self._attend_image(query, key_image, value_image, None).flatten(2, 3).type_as(query)

        out = self._attend(query, key, value, attention_mask).flatten(2, 3).type_as(query)
        if image_out is not None:
            out = out + image_out
        projected: torch.Tensor = attn.to_out[1](attn.to_out[0](out))
        return projected

    def _dispatch(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        return self._stock_attention(query, key, value, mask, None)

    def _dispatch_self(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        return self._stock_attention(query, key, value, mask, self._parallel_config)

    def _stock_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        parallel_config: Any,
    ) -> torch.Tensor:
        out: torch.Tensor = dispatch_attention_fn(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=0.0,
            is_causal=False,
            backend=self._attention_backend,
            parallel_config=parallel_config,
        )
        return out


def open_attention(attn: Any, wrap: Wrap, path: str, index: int, role: str) -> None:
    """Give one attention module of the copy the open processor, if anything is claimed at its sites."""
    processor = OpenProcessor(attn.processor, wrap, path, index, role)
    if attn.add_k_proj is not None:
        processor.open_image(wrap, path, index)
    if processor.claimed:
        attn.processor = processor


def close_attention(attn: Any) -> None:
    """Give the stock processor back to an attention module of the copy that ``open_attention`` was given; a block of
    a user's own may have none.
    """
    processor = getattr(attn, "processor", None)
    if isinstance(processor, OpenProcessor):
        attn.processor = processor.close()
