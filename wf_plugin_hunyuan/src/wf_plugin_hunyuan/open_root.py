"""The open roots: the forwards of both transformers written in the seams ``modulation``, ``stack`` and ``block``.

Shapes: hidden_states ``[B, C, T', H', W']`` in; x ``[B, L, D]`` with L = T*H*W image tokens between patch embedding and
head; text ``[B, S, D]``; temb ``[B, D]``. With ``trims`` the text is cut to its valid length, and blocks get a mask
``[B, 1, 1, L + S]`` where samples differ in length, else None: only for blocks whose attention is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import apply_lora_scale

from wf_lib_family.sites import Wrap
from wf_plugin_hunyuan.run_memory import memory_of
from wf_plugin_hunyuan.streams import Stack
from wf_plugin_hunyuan.text import cut_to, key_mask, layout_of, mask_if_needed, valid_lengths


def no_modulation(temb: torch.Tensor, timestep_proj: torch.Tensor) -> None:
    """What the ``modulation`` seam stands around: nothing, it is read only."""


class OpenRoot:
    """``forward(root, ...)`` of ``HunyuanVideoTransformer3DModel``, in all three forms of image condition."""

    def __init__(self, root: Any, wrap: Wrap, trims: bool) -> None:
        self._memory = memory_of(root)
        self._trims = trims
        self._stack = Stack(root, wrap)
        self._modulation = wrap("modulation", no_modulation)

    def as_forward(self) -> Callable[..., Any]:
        """The function of ``(root, ...)``, under the stock forward's decorator."""
        forward: Callable[..., Any] = apply_lora_scale("attention_kwargs")(self._forward)
        return forward

    def _forward(
        self,
        root: Any,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        pooled_projections: torch.Tensor,
        guidance: torch.Tensor | None = None,
        attention_kwargs: dict[str, Any] | None = None,
        return_dict: bool = True,
    ) -> Any:
        shape, patch = hidden_states.shape, root.config.patch_size
        first_frame = (shape[3] // patch) * (shape[4] // patch)
        rotary = root.rope(hidden_states)
        temb, first_frame_temb = root.time_text_embed(timestep, pooled_projections, guidance)
        x = root.x_embedder(hidden_states)
        text = root.context_embedder(encoder_hidden_states, timestep, encoder_attention_mask)
        text, mask = self._masked(x, text, encoder_attention_mask)
        self._tell(root, temb)
        x = self._stack(x, text, temb, mask, rotary, first_frame_temb, first_frame)
        return as_output(project_out(root, x, temb, shape), return_dict)

    def _masked(
        self, x: torch.Tensor, text: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self._trims:
            return text, key_mask(mask.sum(dim=1, dtype=torch.int), x.shape[1], text.shape[1])
        lengths = self._memory.once(valid_lengths, mask)
        length = cut_to(lengths)
        return text[:, :length], mask_if_needed(lengths, x.shape[1], length, x.device)

    def _tell(self, root: Any, temb: torch.Tensor) -> None:
        """Show the time signal, and what the first block makes of it for its image stream, ``[B, 6, D]``."""
        if self._modulation is not no_modulation:
            norm = root.transformer_blocks[0].norm1
            self._modulation(temb, norm.linear(norm.silu(temb)).unflatten(-1, (6, -1)))


class OpenRoot15(OpenRoot):
    """``forward(root, ...)`` of ``HunyuanVideo15Transformer3DModel``.

    The order of the text tokens, and whether there is an image, are found once per run and not at every call: both are
    read back from the device.
    """

    def _forward(  # type: ignore[override]
        self,
        root: Any,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        timestep_r: torch.Tensor | None = None,
        encoder_hidden_states_2: torch.Tensor | None = None,
        encoder_attention_mask_2: torch.Tensor | None = None,
        image_embeds: torch.Tensor | None = None,
        attention_kwargs: dict[str, Any] | None = None,
        return_dict: bool = True,
    ) -> Any:
        assert encoder_attention_mask_2 is not None, "HunyuanVideo-1.5 needs the mask of its second text"
        assert image_embeds is not None, "HunyuanVideo-1.5 needs image_embeds, zeros without an image"
        shape = hidden_states.shape
        rotary = root.rope(hidden_states)
        temb = root.time_embed(timestep, timestep_r=timestep_r)
        x = root.x_embedder(hidden_states)
        text = _typed(root, 0, root.context_embedder(encoder_hidden_states, timestep, encoder_attention_mask))
        text_2 = _typed(root, 1, root.context_embedder_2(encoder_hidden_states_2))
        image = root.image_embedder(image_embeds)
        layout = self._memory.once(layout_of, encoder_attention_mask, encoder_attention_mask_2, image_embeds)
        image = _typed(root, 2, image * 0.0 if layout.no_image else image)
        length = cut_to(layout.lengths) if self._trims else layout.order.shape[1]
        text = layout.apply(image, text_2, text, length)
        mask: torch.Tensor | None = layout.valid
        if self._trims:
            mask = mask_if_needed(layout.lengths, x.shape[1], length, x.device)
        self._tell(root, temb)
        x = self._stack(x, text, temb, mask, rotary)
        return as_output(project_out(root, x, temb, shape), return_dict)


def _typed(root: Any, kind: int, tokens: torch.Tensor) -> torch.Tensor:
    """The tokens ``[B, S, D]`` of one source, with what marks them as of that source."""
    kinds = torch.full_like(tokens[:, :, 0], kind, dtype=torch.long)
    marked: torch.Tensor = tokens + root.cond_type_embed(kinds)
    return marked


def project_out(root: Any, x: torch.Tensor, temb: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The output head on x ``[B, L, D]`` -> ``[B, C, T', H', W']`` for the latent ``shape``."""
    batch, _, frames, height, width = shape
    p_t, p = root.config.patch_size_t, root.config.patch_size
    tokens = root.proj_out(root.norm_out(x, temb))
    tokens = tokens.reshape(batch, frames // p_t, height // p, width // p, -1, p_t, p, p)
    sample: torch.Tensor = tokens.permute(0, 4, 1, 5, 2, 6, 3, 7).flatten(6, 7).flatten(4, 5).flatten(2, 3)
    return sample


def as_output(sample: torch.Tensor, return_dict: bool) -> Any:
    """The sample as the stock forward returns it."""
    return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)
