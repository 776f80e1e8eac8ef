"""The order in which features compose on a seam, outermost first. Install order never matters."""

from __future__ import annotations

STAGES = (
    "parallel",
    "guidance",
    "cache",
    "sparse",
    "attention",
    "adapter",
    "fusion",
    "precision",
    "quantize",
    "placement",
    "vae",
    "compile",
    "graph",
)

_STAGE_OF_KIND = {
    "parallel-strategy": "parallel",
    "feature-cache": "cache",
    "sparse-kernel": "sparse",
    "attention-provider": "attention",
    "adapter": "adapter",
    "fusion": "fusion",
    "quantizer": "quantize",
    "placement": "placement",
    "vae-decoder": "vae",
    "execution-mode": "compile",
}


def default_stage(kind: str) -> str:
    """The stage of a feature that names none; "" for kinds that are never composed (models)."""
    return _STAGE_OF_KIND.get(kind, "")


def position(stage: str) -> int:
    """The place of a stage in the order; features without one come last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)
