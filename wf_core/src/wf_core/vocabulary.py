"""Closed lists that manifests are checked against: kinds, tiers, seams and how they nest, API numbers."""

from __future__ import annotations

HOST_API = 1
SCHEMA = 1

KINDS = (
    "attention-provider",
    "feature-cache",
    "sparse-kernel",
    "quantizer",
    "vae-decoder",
    "parallel-strategy",
    "placement",
    "execution-mode",
    "fusion",
    "adapter",
    "model-family",
    "model-source",
)

TIERS = ("exact", "equivalent", "approximate")

# seam -> the seam around it ("" where nothing is around it)
SEAM_PARENTS = {
    "guidance": "",
    "denoiser": "guidance",
    "stack": "denoiser",
    "block": "stack",
    "branch": "block",
    "attention": "branch",
    "norm_modulate": "block",
    "gated_residual": "block",
    "linear": "denoiser",
    "rope": "denoiser",
    "modulation": "denoiser",
    "vae.decode": "",
    "vae.encode": "",
    "placement": "",
    "scheduler": "",
}


def is_inside(seam: str, outer: str) -> bool:
    """Whether ``seam`` is ``outer`` or inside it. An empty seam stands for everywhere, so it always is."""
    if not seam or not outer:
        return True
    while seam:
        if seam == outer:
            return True
        seam = SEAM_PARENTS[seam]
    return False
