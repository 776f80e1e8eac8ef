"""Mixed precision in decode: weights stay as they are, convolutions and products run in 16 bit.

One autocast context stands around the whole decode, so that torch casts each weight once and not once per frame; it
does so only for parameters that require a gradient, as loaded ones do, and outside ``torch.inference_mode``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from wf_core.api import RunView
from wf_plugin_vae_wan.decoder import Decode, WanDecoder


class AutocastDecoder(WanDecoder):
    """``dtype`` is bfloat16 or float16. The video comes back in the dtype of the latents."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._last: dict[str, object] = {}

    def begin(self, run: RunView) -> None:
        self._last = {}

    def decode_all(self, inner: Decode, latents: torch.Tensor) -> torch.Tensor:
        with torch.autocast(latents.device.type, dtype=self._dtype):
            video = inner(latents)
        self._judge(video.dtype)
        return video.to(latents.dtype)

    def _judge(self, seen: torch.dtype) -> None:
        """What comes out of the last convolution has its dtype, and nothing after it changes that."""
        weights = self.vae.decoder.conv_out.weight.dtype
        self._last = {"dtype_inside": _name(seen), "dtype_of_weights": _name(weights)}
        if weights is self._dtype:
            self._last["no_effect"] = f"the VAE already runs in {_name(weights)}"
        elif seen is self._dtype:
            self.counters.add("successes")

    def evidence(self) -> Mapping[str, object]:
        """The dtype seen inside the last decode, and that of the weights."""
        return self._last


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
