"""The toy family's bench."""

from __future__ import annotations

import torch

from wf_core.api import Bench, seeded
from wf_core.testing.toy.model import (
    ToyPipeline,
    ToyScheduler,
    ToyTransformer,
    ToyVae,
)


def pipeline() -> ToyPipeline:
    """Two blocks, four latent channels."""
    transformer = seeded(ToyTransformer)
    vae = seeded(ToyVae, seed=1)
    return ToyPipeline(transformer, vae, ToyScheduler())


def bench() -> Bench:
    """16x16 pixels, 5 frames, 4 steps with guidance."""
    g = torch.Generator().manual_seed(7)
    call = {
        "prompt_embeds": torch.randn(1, 5, 8, generator=g),
        "negative_prompt_embeds": torch.randn(1, 5, 8, generator=g),
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "num_inference_steps": 4,
        "guidance_scale": 3.0,
    }
    return Bench(pipeline, call, {"height": 24, "num_inference_steps": 5})
