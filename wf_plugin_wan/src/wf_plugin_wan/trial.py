"""Tiny Wan models of the stock diffusers classes, and the bench on which techniques are checked."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel

from wf_core.api import Bench, seeded

TRANSFORMER: dict[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 16,
    "freq_dim": 256,
    "ffn_dim": 32,
    "num_layers": 2,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 32,
}
VAE: dict[str, Any] = {
    "base_dim": 3,
    "z_dim": 16,
    "dim_mult": [1, 1, 1, 1],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
}
TEXT_TOKENS = 7


def pipeline() -> WanPipeline:
    """Text to video with one expert and no text encoder: embeddings are passed in."""
    pipe = WanPipeline(
        tokenizer=None,
        text_encoder=None,
        transformer=seeded(WanTransformer3DModel, **TRANSFORMER),
        vae=seeded(AutoencoderKLWan, **VAE),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def bench() -> Bench:
    """32x32 pixels, 9 frames, 4 steps with guidance."""
    g = torch.Generator().manual_seed(7)
    call = {
        "prompt_embeds": torch.randn(1, TEXT_TOKENS, 16, generator=g),
        "negative_prompt_embeds": torch.randn(1, TEXT_TOKENS, 16, generator=g),
        "height": 32,
        "width": 32,
        "num_frames": 9,
        "num_inference_steps": 4,
        "guidance_scale": 3.0,
        "output_type": "pt",
    }
    return Bench(pipeline, call, {"height": 48, "num_inference_steps": 5})
