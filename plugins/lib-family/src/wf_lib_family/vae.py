"""The seams of a video VAE: ``vae.decode`` and ``vae.encode``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DecoderOutput
from diffusers.models.modeling_outputs import AutoencoderKLOutput

from wf_core.api import Wiring, specialise
from wf_lib_family.closed import SLOT
from wf_lib_family.sites import wrapper


class VaeCalls:
    """Decoding and encoding of one VAE copy through their seams."""

    def __init__(self, vae: Any, wiring: Wiring, space: int, time: int) -> None:
        wrap = wrapper(wiring, "vae")
        stock: Any = type(vae)
        self._wiring = wiring
        self._space = space
        self._time = time
        self._decode = wrap("vae.decode", partial(_first_of, stock.decode, vae))
        self.encode = wrap("vae.encode", partial(_first_of, stock.encode, vae))

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """``[B, C, T, H, W]`` -> ``[B, 3, F, H', W']``, the shape of which is checked."""
        batch, _, frames, height, width = latents.shape
        video: torch.Tensor = self._decode(latents)
        size = (self._time * (frames - 1) + 1, self._space * height, self._space * width)
        self._wiring.require(video, (batch, 3, *size), "vae.decode")
        return video


def _first_of(method: Any, vae: Any, given: torch.Tensor) -> Any:
    """The stock ``decode`` or ``encode``: the video, or the distribution of the latents."""
    return method(vae, given, return_dict=False)[0]


def _namespace(stock: type) -> Mapping[str, Any]:
    def decode(self: Any, z: torch.Tensor, return_dict: bool = True) -> Any:
        # slicing is kept outside the seam, so that it bounds the memory of whatever decodes
        parts = z.split(1) if self.use_slicing and z.shape[0] > 1 else (z,)
        decoded = [self._wf.decode(part) for part in parts]
        video = decoded[0] if len(decoded) == 1 else torch.cat(decoded)
        return DecoderOutput(sample=video) if return_dict else (video,)

    def encode(self: Any, x: torch.Tensor, return_dict: bool = True) -> Any:
        posterior = self._wf.encode(x)
        return AutoencoderKLOutput(latent_dist=posterior) if return_dict else (posterior,)

    return {"decode": decode, "encode": encode}


def install_vae(vae: Any, wiring: Wiring, *, space: int, time: int) -> None:
    """Put the seams around the copy's ``decode`` and ``encode``; nothing is changed where nobody claims them.

    A latent stands for ``space`` pixels of height and of width, and a latent frame after the first for ``time`` frames.
    """
    if wiring.seams.claimed("vae.decode", "vae.encode"):
        setattr(vae, SLOT, VaeCalls(vae, wiring, space, time))
        specialise(vae, _namespace)
