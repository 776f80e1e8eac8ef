"""Convolution weights in the layout that cuDNN's 3-D kernels prefer, on the session's own VAE only.

``vae.to(memory_format=torch.channels_last_3d)`` raises half way, at the first parameter that is not 5-D, and it would
write through to the user's VAE: a session's copy shares its parameters. So each weight of the decoder is put into a
parameter of its own, in the copy alone. The encoder is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from wf_core.api import RunView
from wf_plugin_vae_wan.decoder import Decode, WanDecoder

_LAYOUT = torch.channels_last_3d


def convert(modules: Iterable[nn.Module]) -> list[nn.Conv3d]:
    """Give every 3-D convolution a parameter of its own with a channels-last weight; returns those that changed.

    Values are the same. A 1x1x1 weight has both layouts at once and is left alone.
    """
    changed = []
    for module in modules:
        if isinstance(module, nn.Conv3d) and not module.weight.is_contiguous(memory_format=_LAYOUT):
            weight = module.weight
            moved = weight.detach().contiguous(memory_format=_LAYOUT)
            module._parameters["weight"] = nn.Parameter(moved, requires_grad=weight.requires_grad)
            changed.append(module)
    return changed


class ChannelsLastDecoder(WanDecoder):
    """Converts once, when the session opens; a decode only checks that the weights still are as they were left."""

    def __init__(self) -> None:
        self._converted: list[nn.Conv3d] = []
        self._probe = ""

    def prepare(self, components: Mapping[str, Any]) -> None:
        super().prepare(components)
        decoder = getattr(self.vae, "decoder", None)
        if decoder is not None:
            self._converted = convert(decoder.modules())

    def check(self, run: RunView) -> Iterable[str]:
        yield from super().check(run)
        if not self._converted:
            yield "the VAE's decoder has no Conv3d weight whose layout could be changed"

    def begin(self, run: RunView) -> None:
        self._probe = ""

    def decode_all(self, inner: Decode, latents: torch.Tensor) -> torch.Tensor:
        self._probe = self._probe or self._layout_of_a_convolution(latents)
        video = inner(latents)
        if all(module.weight.is_contiguous(memory_format=_LAYOUT) for module in self._converted):
            self.counters.add("successes")
        return video

    def _layout_of_a_convolution(self, latents: torch.Tensor) -> str:
        """The layout that the decoder's first convolution gives its output, tried on a corner of one frame."""
        seen = self.vae.decoder.conv_in(latents[:, :, :1, :4, :4])
        return "channels_last_3d" if seen.is_contiguous(memory_format=_LAYOUT) else "contiguous"

    def evidence(self) -> Mapping[str, object]:
        """How many weights were converted, and whether this device's kernels take up the layout."""
        return {"converted_weights": len(self._converted), "probe_layout": self._probe}

    def close(self) -> None:
        super().close()
        self._converted = []
