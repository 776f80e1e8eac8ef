"""What identifies a tensor without reading it, and a digest of what it holds."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

#: Field names of ``tensor_record``, in order.
TENSOR_FIELDS = (
    "tensor object",
    "data pointer",
    "storage offset",
    "shape",
    "stride",
    "dtype",
    "device",
    "requires_grad",
    "version",
)
UNTRACKED = "untracked"
_DENSE = frozenset({torch.Tensor, torch.nn.Parameter})
_ROW = 4096  # int64 words


def tensor_record(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The fields of ``TENSOR_FIELDS``, then the records of the inner tensors if it is a wrapper (a quantised weight).

    Tensors made in inference mode count no versions and read as ``UNTRACKED``: there, and after writes through
    ``.data``, numpy or a raw kernel, which no counter sees either, only ``content_digest`` is proof.
    """
    if type(tensor) not in _DENSE:
        return _careful_record(tensor)
    try:
        version: Any = tensor._version
    except RuntimeError:
        version = UNTRACKED
    try:
        return (
            id(tensor),
            tensor.data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            version,
        )
    except RuntimeError:  # sparse tensors have no storage of their own
        return _careful_record(tensor)


def _careful_record(tensor: torch.Tensor) -> tuple[Any, ...]:
    reads = (
        lambda: tensor.data_ptr(),
        lambda: tensor.storage_offset(),
        lambda: tensor.shape,
        lambda: tensor.stride(),
        lambda: tensor.dtype,
        lambda: tensor.device,
        lambda: tensor.requires_grad,
        lambda: tensor._version,
    )
    values: list[Any] = [id(tensor)]
    for read in reads:
        try:
            values.append(read())
        except (RuntimeError, NotImplementedError):
            values.append(UNTRACKED)
    return (*values, *(tensor_record(part)[1:] for part in _inner(tensor)))  # some are objects made on demand


def _inner(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors behind a wrapper subclass or a sparse tensor; empty for a dense one."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [getattr(tensor, name) for name in names]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


@torch.no_grad()
def content_digest(tensor: torch.Tensor) -> str:
    """A digest of dtype, shape and bytes. Reads every byte once; ``"meta"`` where there are none to read.

    The bytes are seen as int64 words in rows of 4096. The sums of all rows and of all columns are hashed, with
    what is left over hashed as it is: a changed word changes a sum, a moved one changes two. Sums run at the speed of
    memory, on whichever device the tensor is, where hashing everything would be some twenty times slower.
    """
    if tensor.device.type == "meta":
        return "meta"
    digest = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    parts = _inner(tensor)
    for part in parts:
        digest.update(content_digest(part).encode())
    if not parts:
        for piece in _sums(_as_bytes(tensor)):
            digest.update(piece.cpu().numpy().tobytes())
    return digest.hexdigest()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in logical order as a flat uint8 tensor; a copy only where they do not lie in that order."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    raw = flat.view(torch.uint8)
    return raw if raw.storage_offset() % 8 == 0 else raw.clone()


def _sums(raw: torch.Tensor) -> tuple[torch.Tensor, ...]:
    words = raw[: raw.numel() // 8 * 8].view(torch.int64)
    full = words.numel() // _ROW * _ROW
    rows = words[:full].view(-1, _ROW)
    return rows.sum(1), rows.sum(0), words[full:], raw[words.numel() * 8 :]
