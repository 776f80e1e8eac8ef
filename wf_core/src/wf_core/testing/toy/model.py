"""The toy model: transformer, VAE, scheduler and pipeline, in plain torch and small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

SPACE, TIME = 4, 2
"""Pixels per latent and frames per latent of the VAE."""


class ToyAttention(nn.Module):
    """Multi-head attention; ``heads`` of ``head_dim``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.to_out = nn.Linear(width, width)

    def project(
        self, x: torch.Tensor, context: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query ``[B, L, H, D]`` of ``x``, key and value ``[B, N, H, D]`` of ``context``."""
        query, key, value = self.to_q(x), self.to_k(context), self.to_v(context)
        return (
            query.unflatten(-1, (self.heads, -1)),
            key.unflatten(-1, (self.heads, -1)),
            value.unflatten(-1, (self.heads, -1)),
        )

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.to_out(attend(*self.project(x, context), None).flatten(2))
        return out


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """``[B, Lq, H, D]``, ``[B, Lk, H, D]`` twice -> ``[B, Lq, H, D]``."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def modulate(norm: nn.Module, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """``norm(x) * (1 + scale) + shift``."""
    out: torch.Tensor = norm(x) * (1 + scale) + shift
    return out


def add_gated(x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x + out * gate``."""
    return x + out * gate


class ToyBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward, each between a modulated norm and a gated residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm3 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn1 = ToyAttention(width, heads)
        self.attn2 = ToyAttention(width, heads)
        self.ffn = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.modulation = nn.Linear(width, 9 * width)

    def parts(self, temb: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Scale, shift and gate ``[B, 1, D]`` of the three branches."""
        return tuple(self.modulation(temb).unsqueeze(1).chunk(9, dim=-1))

    def forward(self, x: torch.Tensor, temb: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        scale1, shift1, gate1, scale2, shift2, gate2, scale3, shift3, gate3 = self.parts(temb)
        normed = modulate(self.norm1, x, scale1, shift1)
        x = add_gated(x, self.attn1(normed, normed), gate1)
        x = add_gated(x, self.attn2(modulate(self.norm2, x, scale2, shift2), text), gate2)
        return add_gated(x, self.ffn(modulate(self.norm3, x, scale3, shift3)), gate3)


class Output(NamedTuple):
    """What a call of the transformer, the VAE or the pipeline gives."""

    sample: torch.Tensor


class ToyTransformer(nn.Module):
    """Predicts the velocity of latents ``[B, C, T, H, W]`` at ``timestep`` ``[B]`` for text ``[B, N, text_dim]``."""

    def __init__(
        self, layers: int = 2, heads: int = 2, head_dim: int = 8, channels: int = 4, text_dim: int = 8
    ) -> None:
        super().__init__()
        width = heads * head_dim
        self.config = {
            "layers": layers,
            "heads": heads,
            "head_dim": head_dim,
            "channels": channels,
            "text_dim": text_dim,
            "patch_size": (1, 2, 2),
        }
        self.patch = nn.Conv3d(channels, width, (1, 2, 2), (1, 2, 2))
        self.text = nn.Linear(text_dim, width)
        self.time = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(ToyBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, channels * 4)

    def embed(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens ``[B, L, D]``, time embedding ``[B, D]``, text ``[B, N, D]``."""
        tokens = self.patch(hidden_states).flatten(2).transpose(1, 2)
        t = timestep.to(torch.float32)[:, None] / 1000
        temb = self.time(torch.cat([t.sin(), t.cos()], dim=-1).to(tokens.dtype))
        return tokens, temb, self.text(encoder_hidden_states)

    def head(self, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Tokens back to latents of the shape of ``like``."""
        batch, channels, frames, height, width = like.shape
        out = self.out(self.norm(tokens)).view(batch, frames, height // 2, width // 2, channels, 2, 2)
        folded: torch.Tensor = out.permute(0, 4, 1, 2, 5, 3, 6).reshape(like.shape)
        return folded

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        return_dict: bool = True,
    ) -> Any:
        x, temb, text = self.embed(hidden_states, timestep, encoder_hidden_states)
        for block in self.blocks:
            x = block(x, temb, text)
        sample = self.head(x, hidden_states)
        return Output(sample) if return_dict else (sample,)


class ToyVae(nn.Module):
    """Decodes latents ``[B, C, T, H, W]`` to a video ``[B, 3, 2 (T - 1) + 1, 4 H, 4 W]`` in [-1, 1]."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.config = {"channels": channels, "spatial_factor": SPACE, "temporal_factor": TIME}
        self.conv = nn.Conv3d(channels, 8, 1)
        self.to_rgb = nn.Conv3d(8, 3, 1)

    def decode(self, latents: torch.Tensor, return_dict: bool = True) -> Any:
        frames, height, width = latents.shape[2:]
        x = torch.tanh(self.conv(latents))
        x = nn.functional.interpolate(x, size=(TIME * (frames - 1) + 1, SPACE * height, SPACE * width))
        video = torch.tanh(self.to_rgb(x))
        return Output(video) if return_dict else (video,)


class ToyScheduler:
    """Euler steps from 1000 to 0. Keeps its place, as the schedulers of diffusers do."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.timesteps = torch.zeros(0)
        self.index = 0

    def set_timesteps(self, steps: int) -> None:
        """``steps`` timesteps, evenly spaced, the first 1000."""
        self.timesteps = torch.linspace(1000.0, 1000.0 / steps, steps)
        self.index = 0

    def step(self, velocity: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """One Euler step."""
        size = 1.0 / len(self.timesteps)
        self.index += 1
        return latents - velocity * size


class ToyPipeline:
    """Text embeddings to video, with guidance: two transformer calls per step where the scale is above 1."""

    def __init__(
        self,
        transformer: ToyTransformer,
        vae: ToyVae,
        scheduler: ToyScheduler,
    ) -> None:
        self.transformer = transformer
        self.vae = vae
        self.scheduler = scheduler
        parts = {name: type(part).__name__ for name, part in self.components.items()}
        self.config: dict[str, Any] = {"_name_or_path": "toy", **parts}
        self._interrupt = False

    @property
    def components(self) -> Mapping[str, Any]:
        """The parts by name."""
        return {"transformer": self.transformer, "vae": self.vae, "scheduler": self.scheduler}

    @torch.no_grad()
    def __call__(
        self,
        prompt_embeds: torch.Tensor,
        negative_prompt_embeds: torch.Tensor,
        height: int = 16,
        width: int = 16,
        num_frames: int = 5,
        num_inference_steps: int = 4,
        guidance_scale: float = 3.0,
        generator: torch.Generator | None = None,
        output_type: str = "pt",
        callback_on_step_end: Callable[..., Any] | None = None,
    ) -> Any:
        shape = ((num_frames - 1) // TIME + 1, height // SPACE, width // SPACE)
        weight = self.transformer.patch.weight
        latents = torch.randn(1, 4, *shape, generator=generator).to(weight)
        self._interrupt = False
        self.scheduler.set_timesteps(num_inference_steps)
        for index, time in enumerate(self.scheduler.timesteps):
            if self._interrupt:
                break
            t = time.expand(1)
            velocity = self.transformer(latents, t, prompt_embeds, return_dict=False)[0]
            if guidance_scale > 1:
                other = self.transformer(latents, t, negative_prompt_embeds, return_dict=False)[0]
                velocity = other + guidance_scale * (velocity - other)
            latents = self.scheduler.step(velocity, latents)
            if callback_on_step_end is not None:
                callback_on_step_end(self, index, time, {"latents": latents})
        if output_type == "latent":
            return Video(latents)
        return Video(self.vae.decode(latents, return_dict=False)[0])


class Video(NamedTuple):
    """What the pipeline gives: ``frames`` are the video, or the latents."""

    frames: torch.Tensor
