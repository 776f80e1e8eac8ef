"""The VAEs of Cosmos: Predict1 has ``AutoencoderKLCosmos``, the others that of Wan 2.1, with its causal cache."""

from __future__ import annotations

from typing import Any

from wf_core.api import Wiring
from wf_lib_family import vae as shared


def install_vae(vae: Any, wiring: Wiring) -> None:
    """Put the seams around the copy's ``decode`` and ``encode``; nothing is changed where nobody claims them."""
    space, time = strides(vae.config)
    shared.install_vae(vae, wiring, space=space, time=time)


def strides(config: Any) -> tuple[int, int]:
    """Pixels per latent and frames per latent frame."""
    if hasattr(config, "spatial_compression_ratio"):
        return config.spatial_compression_ratio, config.temporal_compression_ratio
    return config.scale_factor_spatial, config.scale_factor_temporal


def release_vae(vae: Any) -> None:
    """Clear the causal cache, which a decode that raised leaves populated; Predict1's VAE keeps none."""
    if "_feat_map" in vae.__dict__:
        vae.clear_cache()
