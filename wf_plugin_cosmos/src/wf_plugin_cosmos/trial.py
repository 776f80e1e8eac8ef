"""Tiny Cosmos models of the stock diffusers classes, and the bench on which techniques are checked."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    Cosmos2_5_PredictBasePipeline,
    CosmosTransformer3DModel,
    UniPCMultistepScheduler,
)

from wf_core.api import Bench, seeded

TRANSFORMER: dict[str, Any] = {
    "in_channels": 17,
    "out_channels": 16,
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "num_layers": 2,
    "mlp_ratio": 2.0,
    "text_embed_dim": 16,
    "adaln_lora_dim": 4,
    "max_size": (8, 16, 16),
    "concat_padding_mask": False,
    "extra_pos_embed_type": None,
    "use_crossattn_projection": True,
    "crossattn_proj_in_channels": 20,
    "encoder_hidden_states_channels": 16,
}
"""Predict2.5. Without the padding mask, which takes torchvision."""
VAE: dict[str, Any] = {
    "base_dim": 3,
    "z_dim": 16,
    "dim_mult": [1, 1, 1, 1],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
}
TEXT_TOKENS = 7


class NothingToCheck:
    """Stands where the pipelines of published models have their safety checker: these make noise from noise."""

    def to(self, device: Any) -> NothingToCheck:
        return self

    def check_text_safety(self, prompt: str) -> bool:
        return True

    def check_video_safety(self, frames: Any) -> Any:
        return frames


def pipeline() -> Cosmos2_5_PredictBasePipeline:
    """Text, image or video to video without a text encoder: embeddings are passed in."""
    pipe = Cosmos2_5_PredictBasePipeline(
        tokenizer=None,
        text_encoder=None,
        transformer=seeded(CosmosTransformer3DModel, **TRANSFORMER),
        vae=seeded(AutoencoderKLWan, **VAE),
        scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True),
        safety_checker=NothingToCheck(),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def bench() -> Bench:
    """32x32 pixels, 9 frames, 4 steps with guidance."""
    g = torch.Generator().manual_seed(7)
    call = {
        "prompt_embeds": torch.randn(1, TEXT_TOKENS, 20, generator=g),
        "negative_prompt_embeds": torch.randn(1, TEXT_TOKENS, 20, generator=g),
        "height": 32,
        "width": 32,
        "num_frames": 9,
        "num_inference_steps": 4,
        "guidance_scale": 3.0,
        "output_type": "pt",
    }
    return Bench(pipeline, call, {"height": 48, "num_inference_steps": 5})
