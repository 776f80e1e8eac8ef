"""Closed lists that manifests are checked against (kinds, tiers, seams and how they nest), API numbers, file name."""

from __future__ import annotations

from typing import NamedTuple

FILE_NAME = "wf-plugin.toml"
"""The manifest's, beside the plugin's top-level ``__init__.py``."""
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

MODEL_KINDS = ("model-family", "model-source")

TIERS = ("exact", "equivalent", "approximate")

GOALS = ("exact", "fast", "memory")

MEASURES = ("max-abs", "relative-l2", "psnr")


class Seam(NamedTuple):
    """A place in a model: the seam around it ("" for none), and what its handlers get and return."""

    name: str
    parent: str
    doc: str


_SEAMS = (
    Seam(
        "guidance",
        "",
        "the conditional and unconditional calls of one step; args: kwargs mapping of the call -> sample",
    ),
    Seam("denoiser", "guidance", "one transformer call; args: kwargs mapping of the call -> sample"),
    Seam("stack", "denoiser", "all blocks; args: hidden_states [B, L, D] -> hidden_states [B, L, D]"),
    Seam(
        "block",
        "stack",
        "one main transformer block (not a control block); args: hidden_states [B, L, D] -> [B, L, D]",
    ),
    Seam(
        "branch",
        "block",
        "an attention, a feed-forward, or both behind one gate, before it; args: x [B, L, D] -> [B, L, D]",
    ),
    Seam("attention", "branch", "args: query, key, value [B, L, H, D], mask or None -> [B, L, H, D]"),
    Seam(
        "norm_modulate",
        "block",
        "args: norm, x [B, L, D], scale, shift (None where the model has none) -> [B, L, D]",
    ),
    Seam(
        "gated_residual", "block", "args: x, out [B, L, D], gate (None where the model has none) -> [B, L, D]"
    ),
    Seam(
        "linear",
        "denoiser",
        "a named linear layer; args: x [..., in] -> [..., out]; its role is its path below the block",
    ),
    Seam(
        "qkv",
        "branch",
        "the projections of a self-attention; args: attention module, x [B, L, D] -> query, key, value [B, L, H * D]",
    ),
    Seam("feed_forward", "branch", "args: feed-forward module, x [B, L, D] -> [B, L, D]"),
    Seam(
        "rope",
        "branch",
        "norm and rotation of query and key; args: query [B, Lq, H * D], key [B, Lk, H * D], (norm of query, norm of "
        "key), H, (cos, sin) or None where nothing is rotated -> query [B, Lq, H, D], key [B, Lk, H, D]",
    ),
    Seam(
        "time_embedding",
        "denoiser",
        "args: timestep [B], or [B, N] with one for each token, or for each frame where the role is frame -> temb "
        "[B, D], timestep_proj [B, R, D] for the model's R rows, or [B, N, D] and [B, N, R, D], each a tensor or both "
        "TokenRows of one index [B, N]",
    ),
    Seam(
        "modulation",
        "denoiser",
        "time embedding and projection, read only; args: temb, timestep_proj -> None",
    ),
    Seam(
        "vae.decode", "", "args: latents [B, C, T, H, W], de-normalised -> video [B, 3, F, H, W] in [-1, 1]"
    ),
    Seam("vae.encode", "", "args: video [B, 3, F, H, W] -> latent distribution"),
    Seam("placement", "", "where modules live; args: component name, module -> None, once at session start"),
    Seam("scheduler", "", "read only: step index, total, timesteps; args: timesteps -> None, once per run"),
)
SEAMS = {seam.name: seam.doc for seam in _SEAMS}
SEAM_PARENTS = {seam.name: seam.parent for seam in _SEAMS}


def is_inside(seam: str, outer: str) -> bool:
    """Whether ``seam`` is ``outer`` or inside it. An empty seam stands for everywhere, so it always is."""
    if not seam or not outer:
        return True
    while seam:
        if seam == outer:
            return True
        seam = SEAM_PARENTS[seam]
    return False
