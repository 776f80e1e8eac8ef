"""The time signals of a Wan transformer from its weights, in fp32.

``e = W2 silu(W1 sinus(t))`` and ``e0 = P silu(e)``, with W1 and W2 the two layers of ``time_embedder`` and P
``time_proj``. The stock forward casts e to the model's dtype before P; the published calibrations do not
(ali-vilab/TeaCache, TeaCache4Wan2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@torch.no_grad()
def time_signals(root: Any, timesteps: tuple[float, ...] | torch.Tensor) -> Mapping[str, torch.Tensor]:
    """``{"e": [N, D], "e0": [N, 6 D]}`` in fp32 on the weights' device, for N scalar timesteps."""
    embedder = root.condition_embedder
    device = embedder.time_proj.weight.device
    t = torch.as_tensor(timesteps, dtype=torch.float32, device=device).reshape(-1)
    with torch.autocast(device.type, enabled=False):
        sinus = embedder.timesteps_proj(t).float()
        e = _linear(embedder.time_embedder.linear_2, F.silu(_linear(embedder.time_embedder.linear_1, sinus)))
        return {"e": e, "e0": _linear(embedder.time_proj, F.silu(e))}


def _linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    bias = None if layer.bias is None else layer.bias.float()
    return F.linear(x, layer.weight.float(), bias)
