"""The open root: the forwards of both Wan transformers written in the seams ``time_embedding``, ``modulation``,
``stack`` and ``block``.

Shapes: hidden_states ``[B, C, T', H', W']`` in; x ``[B, L, D]`` with L = T*H*W tokens between patch embedding and head;
temb ``[B, D]`` and timestep_proj ``[B, 6, D]``, or ``[B, L, D]`` and ``[B, L, 6, D]`` with per-token timesteps, each a
tensor or ``TokenRows``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import apply_lora_scale

from wf_core.api import TokenRows, dense
from wf_lib_family.sites import Span, Wrap
from wf_plugin_wan.conditions import embed_all, embed_text, embed_time


def no_modulation(temb: torch.Tensor, timestep_proj: torch.Tensor) -> None:
    """What the ``modulation`` seam stands around: nothing, it is read only."""


class Blocks:
    """The stock computation of the ``stack`` seam: all blocks, one after another."""

    def __init__(self, root: Any, wrap: Wrap) -> None:
        self._blocks = [
            Span(block, wrap, "block", path=f"blocks.{i}", index=i) for i, block in enumerate(root.blocks)
        ]

    def __call__(self, x: torch.Tensor, text: torch.Tensor, timestep_proj: torch.Tensor, rotary: Any) -> Any:
        for block in self._blocks:
            x = block(x, text, timestep_proj, rotary)
        return x


class VaceBlocks(Blocks):
    """The control blocks, the main blocks and the hints; a ``block`` is a main block, without the hint after it."""

    def __init__(self, root: Any, wrap: Wrap) -> None:
        super().__init__(root, wrap)
        self._vace_blocks = list(root.vace_blocks)
        self._vace_layers = frozenset(root.config.vace_layers)

    def __call__(  # type: ignore[override]
        self,
        x: torch.Tensor,
        text: torch.Tensor,
        timestep_proj: torch.Tensor,
        rotary: Any,
        control: torch.Tensor,
        scales: tuple[torch.Tensor, ...],
    ) -> Any:
        hints = []
        for vace_block, scale in zip(self._vace_blocks, scales, strict=True):
            hint, control = vace_block(x, text, control, timestep_proj, rotary)
            hints.append((hint, scale))
        hints.reverse()
        for i, block in enumerate(self._blocks):
            x = block(x, text, timestep_proj, rotary)
            if i in self._vace_layers:
                hint, scale = hints.pop()
                x = x + hint.to(x.device) * scale
        return x


class OpenRoot:
    """``forward(root, ...)`` of ``WanTransformer3DModel``. Gradient checkpointing is not offered: same values."""

    blocks: type[Blocks] = Blocks

    def __init__(self, root: Any, wrap: Wrap) -> None:
        self._stack = Span(self.blocks(root, wrap), wrap, "stack")
        self._modulation = wrap("modulation", no_modulation)
        self._embed_time = Span(embed_time, wrap, "time_embedding")

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
        encoder_hidden_states_image: torch.Tensor | None = None,
        return_dict: bool = True,
        attention_kwargs: dict[str, Any] | None = None,
        **control: Any,
    ) -> Any:
        shape = hidden_states.shape
        rotary_emb = root.rope(hidden_states)
        x = self._embed(root, hidden_states)
        control_args = self._control(root, x, **control)
        temb, timestep_proj, text = self._conditions(
            root, timestep, encoder_hidden_states, encoder_hidden_states_image
        )
        if self._modulation is not no_modulation:
            self._modulation(dense(temb), dense(timestep_proj))
        x = self._stack(x, text, timestep_proj, rotary_emb, *control_args)
        sample = unpatchify(project_out(root, x, temb), shape, root.config.patch_size)
        return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)

    def _conditions(
        self, root: Any, timestep: torch.Tensor, text: torch.Tensor, image: torch.Tensor | None
    ) -> tuple[Any, Any, torch.Tensor]:
        if not self._embed_time.claimed:
            return embed_all(root, timestep, text, image)
        temb, timestep_proj = self._embed_time(timestep, root, text.dtype)
        return temb, timestep_proj, embed_text(root, text, image)

    def _embed(self, root: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = root.patch_embedding(hidden_states)
        return x.flatten(2).transpose(1, 2).contiguous()

    def _control(self, root: Any, x: torch.Tensor) -> tuple[Any, ...]:
        return ()


class OpenVaceRoot(OpenRoot):
    """``forward(root, ...)`` of ``WanVACETransformer3DModel``; its ``stack`` is one span, with the hints inside."""

    blocks = VaceBlocks

    def _embed(self, root: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = root.patch_embedding(hidden_states)
        # the stock forward leaves the strides as they are, and other strides can mean other last bits
        return x.flatten(2).transpose(1, 2)

    def _control(
        self,
        root: Any,
        x: torch.Tensor,
        control_hidden_states: torch.Tensor | None = None,
        control_hidden_states_scale: torch.Tensor | None = None,
    ) -> tuple[Any, ...]:
        """The control stream ``[B, L, D]``, zero-padded to x's length, and one scale per control block."""
        assert control_hidden_states is not None, "a VACE transformer needs control_hidden_states"
        layers = len(root.config.vace_layers)
        if control_hidden_states_scale is None:
            control_hidden_states_scale = control_hidden_states.new_ones(layers)
        scales = torch.unbind(control_hidden_states_scale)
        if len(scales) != layers:
            raise ValueError(
                f"control_hidden_states_scale has {len(scales)} values for {layers} control blocks"
            )
        control = root.vace_patch_embedding(control_hidden_states).flatten(2).transpose(1, 2)
        padding = control.new_zeros(x.shape[0], x.size(1) - control.size(1), control.size(2))
        return torch.cat([control, padding], dim=1), scales


def project_out(root: Any, x: torch.Tensor, temb: torch.Tensor | TokenRows) -> torch.Tensor:
    """The output head on x ``[B, L, D]`` -> ``[B, L, C_out * p_t * p_h * p_w]``."""
    shift, scale = (dense(row).to(x.device) for row in _rows_out(root, temb))
    x = (root.norm_out(x.float()) * (1 + scale) + shift).type_as(x)
    out: torch.Tensor = root.proj_out(x)
    return out


def _rows_out(root: Any, temb: torch.Tensor | TokenRows) -> tuple[torch.Tensor | TokenRows, ...]:
    """Shift and scale of the head, ``[B, 1, D]``, or ``[B, L, D]`` with per-token timesteps."""
    if isinstance(temb, TokenRows):
        return tuple(TokenRows(dense(row), temb.index) for row in _rows_out(root, temb.values))
    table = root.scale_shift_table.to(temb.device)
    if temb.ndim == 3:
        shift, scale = (table.unsqueeze(0) + temb.unsqueeze(2)).chunk(2, dim=2)
        return shift.squeeze(2), scale.squeeze(2)
    return (table + temb.unsqueeze(1)).chunk(2, dim=1)


def unpatchify(tokens: torch.Tensor, shape: torch.Size, patch: tuple[int, int, int]) -> torch.Tensor:
    """Tokens ``[B, L, C * p_t * p_h * p_w]`` -> ``[B, C, T', H', W']`` for the latent ``shape``."""
    batch, _, frames, height, width = shape
    p_t, p_h, p_w = patch
    x = tokens.reshape(batch, frames // p_t, height // p_h, width // p_w, p_t, p_h, p_w, -1)
    return x.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
