"""The VAE of Wan: its seams, and the causal cache that it keeps on itself."""

from __future__ import annotations

from typing import Any

from wf_core.api import Wiring
from wf_lib_family import vae as shared


def install_vae(vae: Any, wiring: Wiring) -> None:
    """Put the seams around the copy's ``decode`` and ``encode``; nothing is changed where nobody claims them."""
    config = vae.config
    shared.install_vae(vae, wiring, space=config.scale_factor_spatial, time=config.scale_factor_temporal)


def release_vae(vae: Any) -> None:
    """Clear the causal cache, which a decode that raised leaves populated."""
    if "_feat_map" in vae.__dict__:
        vae.clear_cache()
