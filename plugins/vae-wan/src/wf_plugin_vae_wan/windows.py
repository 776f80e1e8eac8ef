"""Temporal chunks: the decoder runs on several latent frames per call instead of one.

The Wan decoder is causal and carries the last two frames of every convolution from call to call (arXiv 2503.20314), so
that the grouping of frames does not change the result beyond rounding. The first call takes exactly one frame: it is
the one that is not upsampled in time, and a first call of more frames gives a wrong video without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, unpatchify

from wf_core.api import RunView
from wf_plugin_vae_wan.decoder import Decode, WanDecoder, stock_tiling


def windows(frames: int, size: int) -> list[tuple[int, int]]:
    """Start and end of each call over ``frames`` latent frames: one frame, then groups of ``size``."""
    later = [(start, min(start + size, frames)) for start in range(1, frames, size)]
    return [(0, 1), *later]


def decode_in_windows(vae: AutoencoderKLWan, latents: torch.Tensor, size: int) -> torch.Tensor:
    """``latents`` ``[B, C, T, H, W]`` -> video ``[B, 3, F, H', W']`` in [-1, 1], as ``vae._decode`` gives it.

    The cache of the convolutions is a list of this call, and the video is written into one tensor: the stock loop
    concatenates anew for every frame.
    """
    hidden = vae.post_quant_conv(latents)
    cache: list[object] = [None] * sum(
        isinstance(module, WanCausalConv3d) for module in vae.decoder.modules()
    )
    growth = 2 ** sum(vae.temperal_upsample)
    video: torch.Tensor | None = None
    done = 0
    for start, end in windows(latents.shape[2], size):
        part = vae.decoder(hidden[:, :, start:end], feat_cache=cache, feat_idx=[0], first_chunk=start == 0)
        part = unpatchify(part, vae.config.patch_size or 1).clamp_(-1.0, 1.0)
        if video is None:
            frames = 1 + growth * (latents.shape[2] - 1)
            video = part.new_empty((*part.shape[:2], frames, *part.shape[3:]))
        video[:, :, done : done + part.shape[2]] = part
        done += part.shape[2]
    assert video is not None
    assert done == video.shape[2], f"decoded {done} frames of {video.shape[2]}"
    return video


class WindowedDecoder(WanDecoder):
    """Stands in place of the stock loop over frames."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._last: list[int] = []

    def check(self, run: RunView) -> Iterable[str]:
        yield from super().check(run)
        yield from stock_tiling(self.vae)

    def begin(self, run: RunView) -> None:
        self._last = []

    def decode_all(self, inner: Decode, latents: torch.Tensor) -> torch.Tensor:
        video = decode_in_windows(self.vae, latents, self._size)
        self._last = [end - start for start, end in windows(latents.shape[2], self._size)]
        self.counters.add("windows", len(self._last) - 1)
        if len(self._last) > 2:
            self.counters.add("successes")
        return video

    def evidence(self) -> Mapping[str, object]:
        """Frames of each call of the last decode. One window after the first frame is no chunking and no success."""
        single = {"single_window": True} if len(self._last) == 2 else {}
        return {"frames_per_call": self._last, **single}
