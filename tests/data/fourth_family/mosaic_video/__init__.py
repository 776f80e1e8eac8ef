"""Mosaic, a small text-to-video model: single-stream blocks on image and text tokens, a pixel-shuffle decoder.

Shapes: latents ``[B, C, T, H, W]``; tokens ``[B, L + S, D]``, L = T * H/2 * W/2 image tokens first, then S text tokens;
the time signal ``[B, 3, D]`` is the shift, scale and gate that all blocks share.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

PATCH, PIXELS = 2, 4
"""Latents per token, and pixels per latent, in height and in width."""


def attend(query, key, value, mask=None):
    """``[B, L, H, D]`` three times -> ``[B, L, H, D]``."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


class JointAttention(nn.Module):
    """The projections of image and text tokens together, and the norms of query and key."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.norm_q, self.norm_k = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)

    def project(self, x):
        """Query, key and value ``[B, L, D]``."""
        return self.to_q(x), self.to_k(x), self.to_v(x)

    def by_heads(self, query, key, value):
        """``[B, L, H, D / H]`` each, query and key normed."""
        query, key, value = (x.unflatten(-1, (self.heads, -1)) for x in (query, key, value))
        return self.norm_q(query), self.norm_k(key), value


class ParallelLayer(nn.Module):
    """Attention and feed-forward side by side, from one norm into one projection."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = JointAttention(width, heads)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(3 * width, width)
        self.table = nn.Parameter(torch.randn(3, width) / 8)

    def forward(self, tokens, signal):
        return self.with_attention(self.attention.project, attend, tokens, signal)

    def with_attention(self, project, attend, tokens, signal):
        """The layer, with the projections and the attention of the caller."""
        shift, scale, gate = (self.table + signal).unsqueeze(2).unbind(1)
        x = self.norm(tokens) * (1 + scale) + shift
        heads = self.attention.by_heads(*project(x))
        mixed = torch.cat([attend(*heads).flatten(2), gelu(self.up(x))], dim=-1)
        return tokens + gate * self.down(mixed)


class MosaicNet(nn.Module):
    """Predicts the velocity of latents at ``timestep`` ``[B]`` for captions ``[B, S, caption_width]``."""

    def __init__(self, depth=3, heads=2, head_width=8, latent_channels=4, caption_width=6):
        super().__init__()
        width = heads * head_width
        self.config = {
            "depth": depth,
            "heads": heads,
            "head_width": head_width,
            "latent_channels": latent_channels,
            "caption_width": caption_width,
            "patch": (1, PATCH, PATCH),
        }
        self.pixels_in = nn.Linear(latent_channels * PATCH**2, width)
        self.caption_in = nn.Linear(caption_width, width)
        self.kind = nn.Parameter(torch.randn(2, width) / 4)
        self.time = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.layers = nn.ModuleList(ParallelLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.pixels_out = nn.Linear(width, latent_channels * PATCH**2)

    def signal(self, timestep):
        """The time signal ``[B, 3, D]`` of timesteps ``[B]``."""
        t = timestep.float()[:, None] * torch.tensor([0.002, 0.01], device=timestep.device)
        waves = torch.cat([t.sin(), t.cos()], dim=-1).to(self.kind.dtype)
        return self.time(waves).unflatten(-1, (3, -1))

    def tokens(self, hidden_states, encoder_hidden_states):
        """Image and text tokens as one sequence."""
        cut = nn.functional.pixel_unshuffle(hidden_states.transpose(1, 2), PATCH)
        image = self.pixels_in(cut.permute(0, 1, 3, 4, 2).flatten(1, 3))
        places = torch.arange(image.shape[1], device=image.device, dtype=image.dtype)[:, None]
        return torch.cat(
            [image + self.kind[0] * places.sin(), self.caption_in(encoder_hidden_states) + self.kind[1]],
            dim=1,
        )

    def latents(self, tokens, like):
        """Image tokens back to latents of the shape of ``like``; text tokens are dropped."""
        batch, _, frames, height, width = like.shape
        grid = (frames, height // PATCH, width // PATCH)
        count = grid[0] * grid[1] * grid[2]
        cut = self.pixels_out(self.norm(tokens[:, :count])).unflatten(1, grid).permute(0, 1, 4, 2, 3)
        return nn.functional.pixel_shuffle(cut, PATCH).transpose(1, 2)

    def forward(self, hidden_states, timestep, encoder_hidden_states, return_dict=True):
        signal = self.signal(timestep)
        tokens = self.tokens(hidden_states, encoder_hidden_states)
        for layer in self.layers:
            tokens = layer(tokens, signal)
        sample = self.latents(tokens, hidden_states)
        return SimpleNamespace(sample=sample) if return_dict else (sample,)


class MosaicDecoder(nn.Module):
    """Latents to a video ``[B, 3, T, 4 H, 4 W]`` in [-1, 1]."""

    def __init__(self, latent_channels=4):
        super().__init__()
        self.config = {"latent_channels": latent_channels, "pixels": PIXELS, "frames": 1}
        self.mix = nn.Conv3d(latent_channels, 3 * PIXELS**2, (1, 3, 3), padding=(0, 1, 1))

    def decode(self, latents, return_dict=True):
        frames = self.mix(latents).transpose(1, 2)
        video = nn.functional.pixel_shuffle(frames, PIXELS).transpose(1, 2).tanh()
        return SimpleNamespace(sample=video) if return_dict else (video,)


class ShiftedEuler:
    """Euler steps on shifted noise levels from 1 to 0; timesteps are 1000 times the level."""

    def __init__(self, shift=2.0):
        self.config = {"shift": shift}
        self.levels = torch.zeros(1)
        self.timesteps = torch.zeros(0)
        self.at = 0

    def set_timesteps(self, steps):
        even = torch.linspace(1.0, 1.0 / steps, steps)
        shift = self.config["shift"]
        levels = shift * even / (1 + (shift - 1) * even)
        self.levels = torch.cat([levels, torch.zeros(1)])
        self.timesteps, self.at = 1000 * levels, 0

    def step(self, velocity, latents):
        size = self.levels[self.at + 1] - self.levels[self.at]
        self.at += 1
        return latents + velocity * size


class MosaicPipeline:
    """Captions to video. With guidance two calls of the transformer per step, the caption's first."""

    def __init__(self, transformer, vae, scheduler):
        self.transformer, self.vae, self.scheduler = transformer, vae, scheduler
        self.config = {name: type(part).__name__ for name, part in self.components.items()}
        self.config["_name_or_path"] = "mosaic-tiny"

    @property
    def components(self):
        return {"transformer": self.transformer, "vae": self.vae, "scheduler": self.scheduler}

    @torch.no_grad()
    def __call__(
        self,
        caption,
        empty_caption,
        height=16,
        width=24,
        num_frames=2,
        num_inference_steps=8,
        guidance_scale=3.0,
        generator=None,
        output_type="pt",
        callback_on_step_end=None,
    ):
        shape = (1, 4, num_frames, height // PIXELS, width // PIXELS)
        latents = torch.randn(shape, generator=generator)
        self.scheduler.set_timesteps(num_inference_steps)
        for index, time in enumerate(self.scheduler.timesteps):
            velocity = self.transformer(latents, time.expand(1), caption, return_dict=False)[0]
            if guidance_scale > 1:
                other = self.transformer(latents, time.expand(1), empty_caption, return_dict=False)[0]
                velocity = other + guidance_scale * (velocity - other)
            latents = self.scheduler.step(velocity, latents)
            if callback_on_step_end is not None:
                callback_on_step_end(self, index, time, {"latents": latents})
        if output_type == "latent":
            return SimpleNamespace(frames=latents)
        return SimpleNamespace(frames=self.vae.decode(latents, return_dict=False)[0])
