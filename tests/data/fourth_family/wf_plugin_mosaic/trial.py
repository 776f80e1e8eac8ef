"""The bench: a tiny pipeline and a short call of it."""

from __future__ import annotations

import torch
from mosaic_video import MosaicDecoder, MosaicNet, MosaicPipeline, ShiftedEuler

from wf_core.api import Bench, seeded


def pipeline():
    return MosaicPipeline(seeded(MosaicNet), seeded(MosaicDecoder, seed=1), ShiftedEuler())


def bench():
    """16x24 pixels, 2 frames, 8 steps with guidance: 12 image tokens and 5 text tokens."""
    captions = torch.randn(2, 1, 5, 6, generator=torch.Generator().manual_seed(7))
    call = {
        "caption": captions[0],
        "empty_caption": captions[1],
        "height": 16,
        "width": 24,
        "num_frames": 2,
        "num_inference_steps": 8,
        "guidance_scale": 3.0,
    }
    return Bench(pipeline, call, {"height": 32, "num_inference_steps": 3})
