"""The open root: ``CosmosTransformer3DModel``'s forward written in the seams ``time_embedding``, ``modulation``,
``stack`` and ``block``.

Shapes: hidden_states ``[B, C, T', H', W']`` in; x ``[B, L, D]`` with L = T*H*W tokens between patch embedding and head;
embedded timestep ``[B, D]`` and temb ``[B, 3 D]``, or ``[B, L, D]`` and ``[B, L, 3 D]`` with per-frame timesteps, both
tensors or both ``TokenRows`` of one index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers import transformer_cosmos

from wf_core.api import TokenRows, dense
from wf_lib_family.rows import Row
from wf_lib_family.sites import Span, Wrap
from wf_lib_family.sublayers import norm_modulate
from wf_plugin_cosmos.conditions import Grid, by_frame, embed_text, embed_time, of_tokens


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
        self._embed_time = Span(embed_time, wrap, "time_embedding", role="frame")

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
        embedded, temb = self._times(root, x, timestep, grid)
        text = embed_text(root, encoder_hidden_states)
        mask = None if attention_mask is None else attention_mask.unsqueeze(1).unsqueeze(1)
        residuals = by_block(root, block_controlnet_hidden_states)
        x = self._stack(x, residuals, text, embedded, temb, rotary_emb, extra, mask)
        sample = unpatchify(root, root.proj_out(norm_out(root.norm_out, x, embedded, temb)), grid)
        return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)

    def _times(self, root: Any, x: torch.Tensor, timestep: torch.Tensor, grid: Grid) -> tuple[Row, Row]:
        """The embedded timestep and temb, as the blocks are given them."""
        timestep = by_frame(timestep, x.shape[0], grid[0])
        embedded, projection = self._embed_time(timestep, root, x)
        if timestep.ndim == 2:
            embedded, projection = of_tokens(embedded, projection, grid)
        if self._modulation is not no_modulation:
            self._modulation(dense(embedded), dense(projection))
        if isinstance(projection, TokenRows):
            return embedded, projection.map(lambda rows: rows.flatten(-2))
        return embedded, projection.flatten(-2)


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


def norm_out(norm: Any, x: torch.Tensor, embedded: Row, temb: Row) -> torch.Tensor:
    """The modulated norm of the head on x ``[B, L, D]``; by the stock module, but on rows that tokens share, which are
    written out for it where it has hooks.
    """
    if not isinstance(embedded, TokenRows) or norm._forward_hooks or norm._forward_pre_hooks:
        out: torch.Tensor = norm(x, dense(embedded), dense(temb))
        return out
    assert isinstance(temb, TokenRows)
    rows = norm.linear_2(norm.linear_1(norm.activation(embedded.values)))
    rows = rows + temb.values[..., : 2 * norm.embedding_dim]
    shift, scale = (TokenRows(row, embedded.index) for row in rows.chunk(2, dim=-1))
    return norm_modulate(norm.norm, x, scale, shift)


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
