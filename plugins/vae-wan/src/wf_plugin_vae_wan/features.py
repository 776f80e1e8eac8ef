"""From a feature's name and options to its decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from wf_core.api import VaeDecoder
from wf_plugin_vae_wan.autocast import AutocastDecoder
from wf_plugin_vae_wan.channels_last import ChannelsLastDecoder
from wf_plugin_vae_wan.tiling import TiledDecoder
from wf_plugin_vae_wan.windows import WindowedDecoder

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def build(feature: str, options: Mapping[str, Any]) -> VaeDecoder:
    """The decoder of one feature; raises ``BadInput`` for options that do not fit together."""
    if feature == "vae-spatial-tiling":
        return TiledDecoder(tuple(options["tile_size"]), tuple(options["tile_stride"]))
    if feature == "vae-temporal-chunk":
        return WindowedDecoder(options["chunk_size"])
    if feature == "vae-autocast":
        return AutocastDecoder(_DTYPES[options["dtype"]])
    return ChannelsLastDecoder()
