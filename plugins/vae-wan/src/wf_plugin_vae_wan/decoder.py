"""What the features share: the session's own VAE, and a feature cache that is empty after every decode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from diffusers import AutoencoderKLWan

from wf_core.api import RunView, VaeDecoder

Decode = Callable[[torch.Tensor], torch.Tensor]


class WanDecoder(VaeDecoder):
    """A ``VaeDecoder`` of an ``AutoencoderKLWan``.

    The VAE keeps the last frames of every causal convolution while it decodes, and drops them when it has finished.
    A decode that raises leaves them behind; here they are dropped on every exit.
    """

    vae: Any = None
    """The session's own VAE; None before ``prepare`` and after ``close``."""

    def prepare(self, components: Mapping[str, Any]) -> None:
        self.vae = components.get("vae")

    def close(self) -> None:
        self.vae = None

    def check(self, run: RunView) -> Iterable[str]:
        if not isinstance(self.vae, AutoencoderKLWan):
            yield f"the VAE is {type(self.vae).__name__}; this feature decodes with AutoencoderKLWan only"

    def decode(self, inner: Decode, latents: torch.Tensor) -> torch.Tensor:
        self.counters.add("attempts")
        try:
            return self.decode_all(inner, latents)
        finally:
            self.vae.clear_cache()

    @abstractmethod
    def decode_all(self, inner: Decode, latents: torch.Tensor) -> torch.Tensor:
        """``decode`` without the care for what stays behind."""

    def held_tensors(self) -> Iterable[torch.Tensor]:
        cached = getattr(self.vae, "_feat_map", None) or ()
        return tuple(item for item in cached if isinstance(item, torch.Tensor))


def stock_tiling(vae: AutoencoderKLWan) -> Iterable[str]:
    """The reason not to go around tiling that the user has switched on in the VAE itself."""
    if getattr(vae, "use_tiling", False):
        yield (
            "this VAE has diffusers' own tiling switched on, which would be mixed with this feature; "
            "call vae.disable_tiling(), and ask for vae_spatial_tiling instead"
        )
