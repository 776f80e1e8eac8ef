"""The expressions of diffusers' ``WanTransformerBlock`` and ``WanAttnProcessor`` that the kernels stand in for."""

from __future__ import annotations

import torch

from wf_core.api import dense


def norm_modulate(norm, x, scale, shift):
    if scale is None:
        return norm(x.float()).type_as(x)
    return (norm(x.float()) * (1 + dense(scale)) + dense(shift)).type_as(x)


def gated_residual(x, out, gate):
    return x + out if gate is None else (x.float() + out * dense(gate)).type_as(x)


def norm_and_rotate(query, key, norms, heads, tables):
    """query and key ``[B, L, H * D]`` -> ``[B, L, H, D]``; tables as the model has them, or None."""
    query, key = (norm(x).unflatten(2, (heads, -1)) for norm, x in zip(norms, (query, key), strict=True))
    return (query, key) if tables is None else (_rotate(query, *tables), _rotate(key, *tables))


def _rotate(x, cos, sin):
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[..., 0::2], sin[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = first * cos - second * sin
    out[..., 1::2] = first * sin + second * cos
    return out.type_as(x)
