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


def reset_peak() -> None:
    """Start measuring the peak anew, on every CUDA device that this process uses."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)


def peak_bytes() -> dict[str, int]:
    """Peak device bytes since ``reset_peak``; empty without CUDA. Two sessions at once share one figure."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    return {"peak_bytes": max(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count()))}
