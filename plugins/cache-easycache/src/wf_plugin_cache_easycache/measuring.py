"""What a leading branch measures: how fast its output changes with the latent, and how far it has come since."""

from __future__ import annotations

import torch

from wf_core.api import geometry, mean_abs, worst
from wf_plugin_cache_easycache.rule import GUARD, estimate, rate


class Measurement:
    """The tensors that the rule compares, all of the latent's size ``[B, C, ...]``, and per-sample numbers ``[B]``.

    The numbers are fp32 and stay on the device. Every sample has its own, so that what is batched together does not
    mix; the batch goes by the largest.
    """

    def __init__(self, latent: torch.Tensor, output: torch.Tensor) -> None:
        self._latent = latent.clone()
        self._output = output.clone()
        self._before = self._latent
        self._per_change: torch.Tensor | None = None
        """The estimate for a change of the latent by 1: made after a computed step, whose kernels nobody waits for."""
        self._sum = output.new_zeros(output.shape[0], dtype=torch.float32)

    @property
    def has_rate(self) -> bool:
        """Whether two steps were computed, which is what a rate takes."""
        return self._per_change is not None

    def fits(self, latent: torch.Tensor) -> bool:
        """Whether a latent can be compared with what is kept."""
        return geometry(self._before) == geometry(latent)

    def offer(self, latent: torch.Tensor) -> float:
        """Adds the estimate of one step; the largest sum of the batch, NaN if one is NaN. Waits for the device once."""
        assert self._per_change is not None, "no rate was measured"
        self._sum = torch.addcmul(self._sum, self._per_change, _size(latent, self._before))
        return worst(self._sum)

    def skipped(self, latent: torch.Tensor) -> None:
        """A step was skipped: its latent is what the next one is compared with."""
        self._before = latent.clone()

    def computed(self, latent: torch.Tensor, output: torch.Tensor) -> None:
        """A step was computed: a new rate between it and the one computed before, and a sum that starts anew."""
        k = rate(_size(output, self._output), _size(latent, self._latent).clamp_min(GUARD))
        self._per_change = estimate(k, _size(output).clamp_min(GUARD))
        self._latent = self._before = latent.clone()
        self._output = output.clone()
        self._sum = torch.zeros_like(self._sum)

    def held(self) -> tuple[torch.Tensor, ...]:
        """What is kept now: the numbers, and two tensors of the latent's size, three after a skipped step."""
        kept = [self._latent, self._output, self._sum]
        if self._before is not self._latent:
            kept.append(self._before)
        if self._per_change is not None:
            kept.append(self._per_change)
        return tuple(kept)


def _size(tensor: torch.Tensor, older: torch.Tensor | None = None) -> torch.Tensor:
    """``mean |tensor|`` of each sample, or ``mean |tensor - older|``: ``[B, ...]`` -> ``[B]`` in fp32."""
    return mean_abs(tensor if older is None else tensor.float() - older)
