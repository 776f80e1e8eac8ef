"""Memory figures for the report."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def held_bytes(groups: Iterable[Iterable[torch.Tensor]]) -> int:
    """Bytes of the distinct storages behind all tensors of all groups."""
    storages: dict[tuple[object, ...], int] = {}
    for tensors in groups:
        for tensor in tensors:
            for part in _dense_parts(tensor):
                try:
                    storage = part.untyped_storage()
                    storages[storage.data_ptr(), part.device] = storage.nbytes()
                except (NotImplementedError, RuntimeError):  # a layout whose storage torch does not show
                    storages["tensor", id(part)] = part.numel() * part.element_size()
    return sum(storages.values())


def _dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that hold the data: indices and values of a sparse one, else the tensor itself."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


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
