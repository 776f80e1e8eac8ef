"""The time signals of a HunyuanVideo transformer from its weights, in fp32.

``e = W2 silu(W1 sinus(t))`` with W1 and W2 the two layers of the timestep embedder, and ``e0 = P silu(e)`` with P the
modulation of the first block's image stream. What the transformer adds to e is the same at every step of a run and not
known here: the pooled text, and the embedded guidance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from wf_plugin_hunyuan.stock import is_15


@torch.no_grad()
def time_signals(root: Any, timesteps: tuple[float, ...] | torch.Tensor) -> Mapping[str, torch.Tensor]:
    """``{"e": [N, D], "e0": [N, 6 D]}`` in fp32 on the weights' device, for N scalar timesteps."""
    embedder = root.time_embed if is_15(root) else root.time_text_embed
    layers, modulation = embedder.timestep_embedder, root.transformer_blocks[0].norm1.linear
    device = modulation.weight.device
    t = torch.as_tensor(timesteps, dtype=torch.float32, device=device).reshape(-1)
    with torch.autocast(device.type, enabled=False):
        sinus = embedder.time_proj(t).float()
        e = _linear(layers.linear_2, F.silu(_linear(layers.linear_1, sinus)))
        return {"e": e, "e0": _linear(modulation, F.silu(e))}


def _linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    bias = None if layer.bias is None else layer.bias.float()
    return F.linear(x, layer.weight.float(), bias)
