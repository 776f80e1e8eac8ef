"""How far a tensor is from an older one. Numbers come to the host once per call, and the call says so."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GUARD = 1e-6
"""The least denominator of a relative distance, against an all-zero reference."""
PART = 2048
"""The most elements in one sum: with fp32 no digit is lost that a relative distance would show."""


def abs_sums(tensor: torch.Tensor) -> torch.Tensor:
    """``sum |x|`` of the parts of each sample: ``[B, ...]`` -> ``[B, n]`` in fp32, added in fp32 whatever the dtype.

    One pass over the tensor. n depends on its shape and strides. A part is many neighbours: one sum over millions of
    elements loses digits in fp32, and one for every row of a few channels is slow on a device.
    """
    import torch

    numbers = tensor.float() if tensor.dtype is torch.float64 else tensor
    if numbers.ndim < 3 or numbers.is_contiguous():
        size = math.prod(numbers.shape[1:])
        together = _neighbours(size)
        numbers = numbers.reshape(numbers.shape[0], size // together, together)
    sums: torch.Tensor = torch.linalg.vector_norm(numbers, ord=1, dim=-1, dtype=torch.float32)
    return sums.flatten(1)


def mean_abs(tensor: torch.Tensor) -> torch.Tensor:
    """``mean |x|`` of each sample: ``[B, ...]`` -> ``[B]`` in fp32, by `abs_sums`."""
    return abs_sums(tensor).sum(dim=1) / math.prod(tensor.shape[1:])


def relative_l1(current: torch.Tensor, older: torch.Tensor) -> torch.Tensor:
    """``mean |current - older| / mean |older|`` of each sample: ``[B, ...]`` twice -> ``[B]`` in fp32.

    Differences are taken in fp32 whatever the dtype. Nothing is read back from the device.
    """
    return relative_of_sums(abs_sums(current.float() - older), abs_sums(older), math.prod(older.shape[1:]))


def relative_of_sums(moved: torch.Tensor, size: torch.Tensor, elements: int) -> torch.Tensor:
    """`relative_l1` from the `abs_sums` of a difference and of what it is relative to, ``[B, n]`` each -> ``[B]``.

    ``elements`` are those of one sample.
    """
    return moved.sum(dim=1) / size.sum(dim=1).clamp_min(GUARD * elements)


@lru_cache(maxsize=256)
def _neighbours(size: int) -> int:
    """How many elements are summed at once: the largest number up to `PART` that a sample's size divides into."""
    return next((n for n in range(min(size, PART), 1, -1) if size % n == 0), 1)


def worst(distances: torch.Tensor) -> float:
    """The largest of several distances, NaN if one is NaN: the one wait for the device that a dynamic rule costs.

    A batch is decided by its worst sample, so that no request is skipped because its neighbours stand still.
    """
    return float(distances.max())


class Reading:
    """Numbers on their way from the device to the host, for a rule that needs them at a later call.

    The copy is queued at once. `numbers` waits for it alone, and not for what was queued since: a device that has work
    does not run dry.
    """

    __slots__ = ("_event", "copied")

    def __init__(self, numbers: torch.Tensor) -> None:
        import torch

        on_card = numbers.is_cuda
        self.copied = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=on_card)
        """On the host, and what is held; only `numbers` knows when it has arrived."""
        self.copied.copy_(numbers.detach(), non_blocking=on_card)
        self._event: torch.cuda.Event | None = None
        """Recorded behind the copy, on a card."""
        if on_card:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(numbers.device))

    def numbers(self) -> torch.Tensor:
        """On the host, with the shape and dtype of what was read."""
        if self._event is not None:
            self._event.synchronize()
        return self.copied
