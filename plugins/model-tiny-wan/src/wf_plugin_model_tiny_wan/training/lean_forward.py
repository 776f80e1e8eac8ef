"""The transformer's forward pass written for training speed, with the weights as arguments.

It computes what ``WanTransformer3DModel.forward`` computes (a test compares the two) with fewer passes over
memory: one matrix product for q, k and v, modulation as one ``addcmul`` in the compute dtype, and a text
context in which all padding tokens share one row. The stock pipeline pads a prompt with zeros to 512 tokens and
attends to all of them; equal rows have equal keys and values, so one row with ``log(count)`` added to its scores
gives the same softmax.

Legend: B batch, L tokens, D = H * E model width, H heads, E head size, C latent channels, N context rows.
"""

import math

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel

Weights = dict[str, torch.Tensor]

#: Rows of a shortened context: seven tokens as they are, then one that stands for all further padding.
CONTEXT_ROWS = 8


def context_bias(lengths: torch.Tensor) -> torch.Tensor:
    """Return what to add to the scores, ``[B, N]`` float32, so that N rows act like ``lengths`` ``[B]`` tokens."""
    bias = torch.zeros(len(lengths), CONTEXT_ROWS, device=lengths.device)
    bias[:, -1] = torch.log(lengths.float() - (CONTEXT_ROWS - 1))
    return bias


def rotary_tables(
    transformer: WanTransformer3DModel, latents: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and signed sin, ``[1, L, 1, E]`` fp32: rotated = x * cos + swap_pairs(x) * sin."""
    cos, sin = transformer.rope(latents)
    sign = torch.tensor([-1.0, 1.0], device=sin.device).repeat(sin.shape[-1] // 2)
    return cos, sin * sign


def swap_pairs(x: torch.Tensor) -> torch.Tensor:
    """Exchange neighbours in the last dimension: (x0, x1, x2, x3) becomes (x1, x0, x3, x2)."""
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def self_attention(
    w: Weights, at: str, x_BLD: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], heads: int, eps: float
) -> torch.Tensor:
    """Return the block's self-attention output ``[B, L, D]``."""
    weight = torch.cat([w[f"{at}.to_{n}.weight"] for n in "qkv"])
    bias = torch.cat([w[f"{at}.to_{n}.bias"] for n in "qkv"])
    q, k, v = F.linear(x_BLD, weight, bias).chunk(3, dim=-1)
    width = q.shape[-1:]
    q = F.rms_norm(q, width, w[f"{at}.norm_q.weight"], eps).unflatten(-1, (heads, -1))
    k = F.rms_norm(k, width, w[f"{at}.norm_k.weight"], eps).unflatten(-1, (heads, -1))
    cos, sin = rope
    q = torch.addcmul(q * cos, swap_pairs(q), sin).transpose(1, 2)
    k = torch.addcmul(k * cos, swap_pairs(k), sin).transpose(1, 2)
    out = F.scaled_dot_product_attention(q, k, v.unflatten(-1, (heads, -1)).transpose(1, 2))
    return F.linear(out.transpose(1, 2).flatten(2), w[f"{at}.to_out.0.weight"], w[f"{at}.to_out.0.bias"])


def cross_attention(
    w: Weights,
    at: str,
    x_BLD: torch.Tensor,
    text_BND: torch.Tensor,
    bias_BN: torch.Tensor,
    heads: int,
    eps: float,
) -> torch.Tensor:
    """Return the block's attention to the shortened text context, ``[B, L, D]``."""
    width = x_BLD.shape[-1:]
    q = F.linear(x_BLD, w[f"{at}.to_q.weight"], w[f"{at}.to_q.bias"])
    k = F.linear(text_BND, w[f"{at}.to_k.weight"], w[f"{at}.to_k.bias"])
    v = F.linear(text_BND, w[f"{at}.to_v.weight"], w[f"{at}.to_v.bias"])
    q = F.rms_norm(q, width, w[f"{at}.norm_q.weight"], eps).unflatten(-1, (heads, -1)).transpose(1, 2)
    k = F.rms_norm(k, width, w[f"{at}.norm_k.weight"], eps).unflatten(-1, (heads, -1)).transpose(1, 2)
    v = v.unflatten(-1, (heads, -1)).transpose(1, 2)
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1]) + bias_BN[:, None, None]
    out = (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)
    return F.linear(out, w[f"{at}.to_out.0.weight"], w[f"{at}.to_out.0.bias"])


def block(
    w: Weights,
    at: str,
    x_BLD: torch.Tensor,
    text_BND: torch.Tensor,
    bias_BN: torch.Tensor,
    modulation_B6D: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    heads: int,
    eps: float,
) -> torch.Tensor:
    """Return the hidden states ``[B, L, D]`` after one transformer block; ``modulation_B6D`` is fp32."""
    table = (w[f"{at}.scale_shift_table"].float() + modulation_B6D).to(x_BLD.dtype)
    shift1, scale1, gate1, shift2, scale2, gate2 = table.chunk(6, dim=1)
    width = x_BLD.shape[-1:]
    y = torch.addcmul(shift1, F.layer_norm(x_BLD, width, eps=eps), 1 + scale1)
    x = torch.addcmul(x_BLD, self_attention(w, f"{at}.attn1", y, rope, heads, eps), gate1)
    y = F.layer_norm(x, width, w[f"{at}.norm2.weight"], w[f"{at}.norm2.bias"], eps)
    x = x + cross_attention(w, f"{at}.attn2", y, text_BND, bias_BN, heads, eps)
    y = torch.addcmul(shift2, F.layer_norm(x, width, eps=eps), 1 + scale2)
    y = F.linear(y, w[f"{at}.ffn.net.0.proj.weight"], w[f"{at}.ffn.net.0.proj.bias"])
    y = F.linear(F.gelu(y, approximate="tanh"), w[f"{at}.ffn.net.2.weight"], w[f"{at}.ffn.net.2.bias"])
    return torch.addcmul(x, y, gate2)


def lean_forward(
    transformer: WanTransformer3DModel,
    latents: torch.Tensor,
    timestep: torch.Tensor,
    context: torch.Tensor,
    bias: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Predict the flow.

    Args:
        transformer: owner of the (fp32) weights; only patch size (1, 2, 2) is handled.
        latents: noisy latents ``[B, C, T, Y, X]`` float.
        timestep: ``[B]`` float, 0 to 1000.
        context: text embeddings ``[B, N, text_dim]``, rows after the prompt zero.
        bias: ``[B, N]`` from ``context_bias``.
        rope: from ``rotary_tables``.
        dtype: compute dtype of the token stream; time embedding and modulation are computed in fp32.

    Returns:
        ``[B, C, T, Y, X]`` float32.
    """
    config, embed = transformer.config, transformer.condition_embedder
    w = {name: p.to(dtype) for name, p in transformer.named_parameters() if "time_" not in name}
    heads, eps = config.num_attention_heads, config.eps
    rope = (rope[0].to(dtype), rope[1].to(dtype))
    batch, channels, frames, height, width = latents.shape

    x = latents.to(dtype).view(batch, channels, frames, height // 2, 2, width // 2, 2)
    x = x.permute(0, 2, 3, 5, 1, 4, 6).reshape(batch, -1, channels * 4)
    x = F.linear(x, w["patch_embedding.weight"].flatten(1), w["patch_embedding.bias"])
    temb = embed.time_embedder(embed.timesteps_proj(timestep.float()))
    modulation = embed.time_proj(F.silu(temb)).unflatten(1, (6, -1))
    at = "condition_embedder.text_embedder"
    text = F.linear(context.to(dtype), w[f"{at}.linear_1.weight"], w[f"{at}.linear_1.bias"])
    text = F.gelu(text, approximate="tanh")
    text = F.linear(text, w[f"{at}.linear_2.weight"], w[f"{at}.linear_2.bias"])

    for index in range(config.num_layers):
        x = block(w, f"blocks.{index}", x, text, bias, modulation, rope, heads, eps)

    shift, scale = (w["scale_shift_table"].float() + temb[:, None]).to(dtype).chunk(2, dim=1)
    x = torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=eps), 1 + scale)
    x = F.linear(x, w["proj_out.weight"], w["proj_out.bias"])
    x = x.view(batch, frames, height // 2, width // 2, 2, 2, channels).permute(0, 6, 1, 2, 4, 3, 5)
    return x.reshape(batch, channels, frames, height, width).float()
