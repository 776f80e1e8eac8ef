"""A Wan text-to-video transformer in float64, written out from its weights: what other results are measured against.

Nothing of it comes from the code under test: only the weights, the rope angles (float64 here, float32 tables in the
model) and the sinusoidal time embedding are the model's own. Attention is computed in pieces of query rows, so that
30,000 tokens fit a large card.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

F64 = torch.float64
ROWS = 512
"""Query rows of one piece of attention."""


def linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    out = x @ layer.weight.to(F64).T
    return out if layer.bias is None else out + layer.bias.to(F64)


def layer_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return y if norm.weight is None else y * norm.weight.to(F64) + norm.bias.to(F64)


def rms_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.to(F64)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def attention(q_BLHD: torch.Tensor, k_BLHD: torch.Tensor, v_BLHD: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q_BLHD, k_BLHD, v_BLHD))
    scale = q.shape[-1] ** -0.5
    pieces = [(q[:, :, at : at + ROWS] * scale @ k.mT).softmax(-1) @ v for at in range(0, q.shape[2], ROWS)]
    return torch.cat(pieces, 2).transpose(1, 2)


def rotate(x_BLHD: torch.Tensor, angles_LD: torch.Tensor) -> torch.Tensor:
    """Interleaved pairs turned by their angles ``[L, D / 2]``."""
    cos, sin = angles_LD.cos()[:, None], angles_LD.sin()[:, None]
    even, odd = x_BLHD[..., 0::2], x_BLHD[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def rope_angles(config: Any, grid: tuple[int, int, int], device: Any) -> torch.Tensor:
    """``[T H W, D / 2]``: frequencies ``10000 ** (-2 j / d)`` along time, height and width, in that order."""
    size = config.attention_head_dim
    side = 2 * (size // 6)
    parts = []
    for axis, (length, width) in enumerate(zip(grid, (size - 2 * side, side, side), strict=True)):
        omega = 10000.0 ** (-torch.arange(0, width, 2, dtype=F64, device=device) / width)
        shape = [1, 1, 1, -1]
        shape[axis] = length
        angles = (torch.arange(length, dtype=F64, device=device)[:, None] * omega).view(*shape)
        parts.append(angles.expand(*grid, -1))
    return torch.cat(parts, -1).flatten(0, 2)


def attend(attn: Any, x: torch.Tensor, context: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
    heads = attn.heads
    q = rms_norm(attn.norm_q, linear(attn.to_q, x)).unflatten(2, (heads, -1))
    k = rms_norm(attn.norm_k, linear(attn.to_k, context)).unflatten(2, (heads, -1))
    v = linear(attn.to_v, context).unflatten(2, (heads, -1))
    if angles is not None:
        q, k = rotate(q, angles), rotate(k, angles)
    return linear(attn.to_out[0], attention(q, k, v).flatten(2))


def block(
    layer: Any, x: torch.Tensor, text: torch.Tensor, signal: torch.Tensor, angles: torch.Tensor
) -> torch.Tensor:
    """One block; signal ``[B, 6, D]``, or ``[B, L, 6, D]`` per token."""
    rows = layer.scale_shift_table.to(F64) + signal
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = (
        row if signal.ndim == 4 else row.unsqueeze(1) for row in rows.unbind(-2)
    )
    y = layer_norm(layer.norm1, x) * (1 + scale) + shift
    x = x + attend(layer.attn1, y, y, angles) * gate
    x = x + attend(layer.attn2, layer_norm(layer.norm2, x), text, None)
    y = layer_norm(layer.norm3, x) * (1 + ffn_scale) + ffn_shift
    return x + linear(layer.ffn.net[2], gelu_tanh(linear(layer.ffn.net[0].proj, y))) * ffn_gate


def conditions(model: Any, timestep: torch.Tensor, text: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """temb, its projection and the context; timestep ``[B]`` or ``[B, L]``."""
    embedder = model.condition_embedder
    sinus = embedder.timesteps_proj(timestep.flatten()).to(F64).unflatten(0, tuple(timestep.shape))
    time = embedder.time_embedder
    temb = linear(time.linear_2, torch.nn.functional.silu(linear(time.linear_1, sinus)))
    signal = linear(embedder.time_proj, torch.nn.functional.silu(temb)).unflatten(-1, (6, -1))
    words = embedder.text_embedder
    return temb, signal, linear(words.linear_2, gelu_tanh(linear(words.linear_1, text.to(F64))))


def embed(model: Any, latents: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Tokens ``[B, L, D]`` and their grid: the patches, each through one matrix."""
    patches, layer = cut(latents.to(F64), model.config.patch_size), model.patch_embedding
    _, t, h, w, *_ = patches.shape
    weight = layer.weight.to(F64).flatten(1)
    return patches.flatten(1, 3).flatten(2) @ weight.T + layer.bias.to(F64), (t, h, w)


def cut(latents: torch.Tensor, patch: tuple[int, int, int]) -> torch.Tensor:
    """``[B, C, T, H, W]`` -> ``[B, T', H', W', C, p_t, p_h, p_w]``."""
    b, c, t, h, w = latents.shape
    p, q, r = patch
    return latents.view(b, c, t // p, p, h // q, q, w // r, r).permute(0, 2, 4, 6, 1, 3, 5, 7)


def states(
    model: Any, latents: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor
) -> Iterator[torch.Tensor]:
    """The hidden states after each block, then the sample ``[B, C, T, H, W]``."""
    x, grid = embed(model, latents)
    temb, signal, context = conditions(model, timestep, text)
    angles = rope_angles(model.config, grid, latents.device)
    for layer in model.blocks:
        x = block(layer, x, context, signal, angles)
        yield x
    temb = temb if temb.ndim == 3 else temb.unsqueeze(1)
    shift, scale = (model.scale_shift_table.to(F64)[:, i : i + 1] + temb for i in (0, 1))
    x = linear(model.proj_out, layer_norm(model.norm_out, x) * (1 + scale) + shift)
    yield join(x, grid, model.config.patch_size)


def join(x: torch.Tensor, grid: tuple[int, int, int], patch: tuple[int, int, int]) -> torch.Tensor:
    t, h, w = grid
    p, q, r = patch
    x = x.view(x.shape[0], t, h, w, p, q, r, -1).permute(0, 7, 1, 4, 2, 5, 3, 6)
    return x.reshape(x.shape[0], x.shape[1], t * p, h * q, w * r)


def relative(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """``||ours - exact|| / ||exact||`` in float64."""
    return float((ours.to(F64) - exact).norm() / exact.norm())
