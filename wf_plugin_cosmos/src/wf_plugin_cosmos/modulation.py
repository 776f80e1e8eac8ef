"""The time signals of a Cosmos transformer from its weights, in fp32.

``e = RMSNorm(sinus(t))`` goes through each block's own norms, ``e0 = W2 silu(W1 sinus(t))`` is added there as it is.
There are three rows (shift, scale, gate) where Wan has six: every sub-layer of a block starts from the same three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F


@torch.no_grad()
def time_signals(root: Any, timesteps: tuple[float, ...] | torch.Tensor) -> Mapping[str, torch.Tensor]:
    """``{"e": [N, D], "e0": [N, 3 D]}`` in fp32 on the weights' device, for N scalar timesteps."""
    embedding = root.time_embed
    first, second = embedding.t_embedder.linear_1.weight, embedding.t_embedder.linear_2.weight
    t = torch.as_tensor(timesteps, dtype=torch.float32, device=first.device).reshape(-1)
    with torch.autocast(first.device.type, enabled=False):
        sinus = embedding.time_proj(t).float()
        e0 = F.linear(F.silu(F.linear(sinus, first.float())), second.float())
        norm = embedding.norm
        return {"e": F.rms_norm(sinus, sinus.shape[-1:], norm.weight.float(), norm.eps), "e0": e0}
