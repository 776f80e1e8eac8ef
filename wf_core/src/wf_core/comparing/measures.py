"""How far one clip is from another. Clips are ``[F, H, W, 3]`` float in [0, 1], the plain one first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from wf_core.comparing.perceptual import Optional

if TYPE_CHECKING:
    import torch

    Clip = np.ndarray[Any, Any]

WINDOW = 11
"""Pixels of the window of SSIM, sigma 1.5: the smallest frame that can be measured."""
HIGHER_IS_BETTER = {"psnr": True, "ssim": True, "latent_cosine": True, "lpips": False, "vmaf": True}


@attrs.frozen
class Measures:
    """One pair of clips. ``psnr`` in dB is None where the clips are ``identical``: it would be infinite.

    None elsewhere means that nothing could be measured.
    """

    identical: bool
    psnr: float | None
    ssim: float | None
    latent_cosine: float | None
    lpips: float | None = None
    vmaf: float | None = None


def measure(
    plain: Clip,
    other: Clip,
    latents: tuple[torch.Tensor, torch.Tensor] | None,
    more: Mapping[str, Optional],
) -> Measures:
    """Everything about one pair of clips; ``latents`` are those of both runs before decoding, of one shape."""
    return Measures(
        identical=bool(np.array_equal(plain, other)),
        psnr=psnr(plain, other),
        ssim=ssim(plain, other),
        latent_cosine=None if latents is None else cosine(*latents),
        **{name: optional.measure(plain, other) for name, optional in more.items() if optional.measure},
    )


def psnr(plain: Clip, other: Clip) -> float | None:
    """Peak signal-to-noise ratio over all pixels of the clip, in dB; None where there is no difference."""
    error = float(np.square(plain.astype(np.float64) - other.astype(np.float64)).mean())
    return -10 * math.log10(error) if error else None


def ssim(plain: Clip, other: Clip) -> float | None:
    """Structural similarity (Wang et al. 2004: Gaussian window of 11 pixels), the mean over frames and channels.

    None where a frame is smaller than the window.
    """
    from skimage.metrics import structural_similarity

    if min(plain.shape[1:3]) < WINDOW:
        return None
    frames = [
        structural_similarity(
            a,
            b,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            channel_axis=-1,
        )
        for a, b in zip(plain.astype(np.float64), other.astype(np.float64), strict=True)
    ]
    return float(np.mean(frames))


def cosine(plain: torch.Tensor, other: torch.Tensor) -> float | None:
    """Cosine of the angle between two tensors of one shape, taken as vectors, in float64; None where one is zero."""
    a, b = plain.detach().double().flatten(), other.detach().double().flatten()
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths else None
