"""Tiny HunyuanVideo models of the stock diffusers classes, and the bench on which techniques are checked."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
)

from wf_core.api import Bench, seeded

TRANSFORMER: dict[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 10,
    "num_layers": 2,
    "num_single_layers": 2,
    "num_refiner_layers": 1,
    "mlp_ratio": 2.0,
    "text_embed_dim": 16,
    "pooled_projection_dim": 8,
    "rope_axes_dim": (2, 4, 4),
}
VAE: dict[str, Any] = {
    "latent_channels": 4,
    "block_out_channels": (8, 8, 8, 8),
    "layers_per_block": 1,
    "norm_num_groups": 4,
}
TILES = {
    "tile_sample_min_height": 24,
    "tile_sample_min_width": 24,
    "tile_sample_stride_height": 16,
    "tile_sample_stride_width": 16,
}
"""The VAE's own, in pixels: four of them over the clip of the bench where tiling is asked for."""
TEXT_TOKENS, VALID_TOKENS = 8, 5


def pipeline() -> HunyuanVideoPipeline:
    """Text to video without text encoders: embeddings are passed in."""
    pipe = HunyuanVideoPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=seeded(HunyuanVideoTransformer3DModel, **TRANSFORMER),
        vae=seeded(AutoencoderKLHunyuanVideo, **VAE),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=None,
        tokenizer_2=None,
    )
    pipe.vae.enable_tiling(**TILES)
    pipe.vae.disable_tiling()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def embeds(seed: int = 7, valid: int = VALID_TOKENS, prefix: str = "") -> dict[str, torch.Tensor]:
    """Embeddings of one prompt of which the first ``valid`` tokens count; ``prefix`` is empty or ``negative_``."""
    g = torch.Generator().manual_seed(seed)
    return {
        f"{prefix}prompt_embeds": torch.randn(1, TEXT_TOKENS, 16, generator=g),
        f"{prefix}pooled_prompt_embeds": torch.randn(1, 8, generator=g),
        f"{prefix}prompt_attention_mask": (torch.arange(TEXT_TOKENS) < valid).long().unsqueeze(0),
    }


def bench() -> Bench:
    """32x32 pixels, 9 frames, 4 steps with true guidance beside the embedded one; both texts are padded."""
    call = {
        **embeds(),
        **embeds(8, 3, "negative_"),
        "height": 32,
        "width": 32,
        "num_frames": 9,
        "num_inference_steps": 4,
        "true_cfg_scale": 3.0,
        "output_type": "pt",
    }
    return Bench(pipeline, call, {"height": 48, "num_inference_steps": 5})
