"""Memory figures for the report."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def held_bytes(groups: Iterable[Iterable[torch.Tensor]]) -> int:
    """Bytes of the distinct storages behind all tensors of all groups."""
    storages = {}
    for tensors in groups:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr(), tensor.device] = storage.nbytes()
    return sum(storages.values())


def _devices() -> range:
    """The CUDA devices that this process uses: none before CUDA is initialised, and asking does not initialise it."""
    in_use = torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if in_use else 0)


def reset_peak() -> None:
    """Start measuring the peak anew, on every CUDA device that this process uses."""
    for device in _devices():
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes() -> dict[str, int]:
    """Peak device bytes since ``reset_peak``; empty without CUDA. Two sessions at once share one figure."""
    peaks = [torch.cuda.max_memory_allocated(device) for device in _devices()]
    return {"peak_bytes": max(peaks)} if peaks else {}
