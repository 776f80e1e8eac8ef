"""Tiled decoding of HunyuanVideo and Cosmos by diffusers' own code: the hook of this plugin, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Facts, VaeDecoder


@hookimpl
def wf_vae_decoder(feature: str, options: Mapping[str, Any], facts: Facts) -> VaeDecoder:
    from wf_plugin_vae_tiling.decoder import TiledDecoder

    return TiledDecoder(options.get("tile_size"), options.get("tile_stride"))
