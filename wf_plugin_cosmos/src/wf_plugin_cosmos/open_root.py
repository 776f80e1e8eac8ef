"""The open root: ``CosmosTransformer3DModel``'s forward written in the seams ``modulation``, ``stack`` and ``block``.

Shapes: hidden_states ``[B, C, T', H', W']`` in; x ``[B, L, D]`` with L = T*H*W tokens between patch embedding and head;
embedded timestep ``[B, D]`` and temb ``[B, 3 D]``, or ``[B, L, D]`` and ``[B, L, 3 D]`` with per-frame timesteps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers import transformer_cosmos

from wf_lib_family.sites import Span, Wrap

Grid = tuple[int, int, int]


def no_modulation(embedded: torch.Tensor, temb: torch.Tensor) -> None:
    """What the ``modulation`` seam stands around: nothing, it is read only."""


class Blocks:
    """The stock computation of the ``stack`` seam: all blocks with what a control network adds after some of them."""

    def __init__(self, root: Any, wrap: Wrap) -> None:
        self._blocks = [
            Span(block, wrap, "block", path=f"transformer_blocks.{i}", index=i)
            for i, block in enumerate(root.transformer_blocks)
        ]

    def __call__(self, x: torch.Tensor, residuals: Mapping[int, torch.Tensor], *shared: Any) -> torch.Tensor:
        for i, block in enumerate(self._blocks):
            x = block(x, *shared, residuals.get(i))
        return x


class OpenRoot:
    """``forward(root, ...)`` of the transformer. Gradient checkpointing is not offered: same values."""

    def __init__(self, root: Any, wrap: Wrap) -> None:
        self._stack = Span(Blocks(root, wrap), wrap, "stack")
        self._modulation: Callable[..., Any] = wrap("modulation", no_modulation)

    def forward(
        self,
        root: Any,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: Any,
        block_controlnet_hidden_states: Any = None,
        attention_mask: torch.Tensor | None = None,
        fps: int | None = None,
        condition_mask: torch.Tensor | None = None,
        padding_mask: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        grid = token_grid(root, hidden_states)
        latents = with_masks(root, hidden_states, condition_mask, padding_mask)
        rotary_emb = root.rope(latents, fps=fps)
        extra = root.learnable_pos_embed(latents) if root.config.extra_pos_embed_type else None
        x = root.patch_embed(latents).flatten(1, 3)
        temb, embedded = embed_time(root, x, timestep, grid)
        if self._modulation is not no_modulation:
            self._modulation(embedded, temb.unflatten(-1, (3, -1)))
        text = embed_text(root, encoder_hidden_states)
        mask = None if attention_mask is None else attention_mask.unsqueeze(1).unsqueeze(1)
        residuals = by_block(root, block_controlnet_hidden_states)
        x = self._stack(x, residuals, text, embedded, temb, rotary_emb, extra, mask)
        sample = unpatchify(root, root.proj_out(root.norm_out(x, embedded, temb)), grid)
        return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)


def token_grid(root: Any, hidden_states: torch.Tensor) -> Grid:
    """Frames, height and width after patching."""
    frames, height, width = hidden_states.shape[2:]
    p_t, p_h, p_w = root.config.patch_size
    return frames // p_t, height // p_h, width // p_w


def with_masks(
    root: Any, hidden_states: torch.Tensor, condition: torch.Tensor | None, padding: torch.Tensor | None
) -> torch.Tensor:
    """The latents with the condition mask, and with the padding mask ``[1, 1, H, W]`` at their size, as channels."""
    x = hidden_states if condition is None else torch.cat([hidden_states, condition], dim=1)
    if not root.config.concat_padding_mask:
        return x
    transforms = transformer_cosmos.transforms
    nearest = transforms.InterpolationMode.NEAREST
    resized = transforms.functional.resize(padding, list(x.shape[-2:]), interpolation=nearest)
    return torch.cat([x, resized.unsqueeze(2).repeat(x.shape[0], 1, x.shape[2], 1, 1)], dim=1)


def embed_time(
    root: Any, x: torch.Tensor, timestep: torch.Tensor, grid: Grid
) -> tuple[torch.Tensor, torch.Tensor]:
    """temb and the embedded timestep, of timesteps ``[B]``, or ``[B, 1, T', 1, 1]`` with one row for every token."""
    batch, frames = x.shape[0], grid[0]
    if timestep.ndim == 1:
        temb, embedded = root.time_embed(x, timestep)
        return temb, embedded
    if timestep.ndim != 5 or timestep.shape != (batch, 1, frames, 1, 1):
        raise ValueError(f"timestep must be [B] or [B, 1, T, 1, 1], got {list(timestep.shape)}")
    temb, embedded = (
        row.view(batch, frames, 1, 1, -1).expand(-1, -1, *grid[1:], -1).flatten(1, 3)
        for row in root.time_embed(x, timestep.flatten())
    )
    return temb, embedded


def embed_text(root: Any, context: Any) -> Any:
    """The context of the blocks: text ``[B, S, D]``, or the pair of it and the image tokens, if it was given as one."""
    text, image = context if isinstance(context, tuple) else (context, None)
    if root.config.use_crossattn_projection:
        text = root.crossattn_proj(text)
    if image is not None and root.config.img_context_dim_in:
        image = root.img_context_proj(image)
    return (text, image) if isinstance(context, tuple) else text


def by_block(root: Any, residuals: Any) -> dict[int, torch.Tensor]:
    """What a control network adds, by the index of the block after which it does."""
    if residuals is None:
        return {}
    after = range(0, len(root.transformer_blocks), root.config.controlnet_block_every_n)
    return {block: residuals[i] for i, block in enumerate(after)}


def unpatchify(root: Any, tokens: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Tokens ``[B, L, p_h * p_w * p_t * C]`` -> ``[B, C, T', H', W']``: not the order in which they were cut."""
    p_t, p_h, p_w = root.config.patch_size
    x = tokens.unflatten(2, (p_h, p_w, p_t, -1)).unflatten(1, grid)
    return x.permute(0, 7, 1, 6, 2, 4, 3, 5).flatten(6, 7).flatten(4, 5).flatten(2, 3)
