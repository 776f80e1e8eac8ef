"""What HunyuanVideo and Cosmos do at the seam ``rope``: diffusers' own norm and rotation, and the same in float64."""

from __future__ import annotations

import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.normalization import RMSNorm

FAMILIES = ("hunyuan", "cosmos")


def tables(family, tokens, head, device="cpu"):
    """Two ``[L, D]`` in fp32 with every value twice: side by side in HunyuanVideo, in both halves in Cosmos."""
    angles = torch.rand(tokens, head // 2, device=device) * 50
    angles = (
        angles.repeat_interleave(2, dim=-1) if family == "hunyuan" else torch.cat([angles, angles], dim=-1)
    )
    return angles.cos(), angles.sin()


def norms(head, dtype, eps=1e-6, affine=True, device="cpu"):
    """Two with weights at random."""
    made = tuple(RMSNorm(head, eps=eps, elementwise_affine=affine) for _ in range(2))
    for norm in made if affine else ():
        torch.nn.init.normal_(norm.weight, 1.0)
    return tuple(norm.to(device, dtype) for norm in made)


def norm_and_rotate(family, query, key, norms, heads, tables):
    """``HunyuanVideoAttnProcessor2_0`` and ``CosmosAttnProcessor2_0``: query and key ``[B, L, H * D]`` ->
    ``[B, L, H, D]``.
    """
    return tuple(_stock(family, x, norm, heads, tables) for x, norm in zip((query, key), norms, strict=True))


def _stock(family, x, norm, heads, tables):
    x = x.unflatten(2, (heads, -1))
    if family == "hunyuan":
        x = norm(x)
        return x if tables is None else apply_rotary_emb(x, tables, sequence_dim=1)
    x = norm(x.transpose(1, 2))
    if tables is not None:
        x = apply_rotary_emb(x, tables, use_real=True, use_real_unbind_dim=-2)
    return x.transpose(1, 2)


def exactly(family, query, key, norms, heads, tables):
    """The same numbers in float64 throughout, from the equations: ``x / sqrt(mean(x^2) + eps) * w``, turned as
    ``(a + ib) (cos + i sin)``.
    """
    return tuple(_exact(family, x, norm, heads, tables) for x, norm in zip((query, key), norms, strict=True))


def _exact(family, x, norm, heads, tables):
    x = x.double().unflatten(2, (heads, -1))
    x = x / (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()
    x = x if norm.weight is None else x * norm.weight.double()
    if tables is None:
        return x
    split = (-1, 2) if family == "hunyuan" else (2, -1)
    at = -1 if family == "hunyuan" else -2
    one, other = x.unflatten(-1, split).unbind(at)
    cos, sin = (table.double().unflatten(-1, split).select(at, 0).unsqueeze(1) for table in tables)
    return torch.stack([one * cos - other * sin, one * sin + other * cos], dim=at).flatten(-2)


def error(found, exact):
    """Relative L2."""
    return float((found.double() - exact).norm() / exact.norm())
