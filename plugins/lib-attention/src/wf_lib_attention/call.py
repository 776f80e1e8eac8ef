"""What one attention call looks like, without its values: the key of the recipe cache and the input of eligibility.

Layout letters: B batch, L tokens (Lq of the query, Lk of key and value), H heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_grad_enabled = torch.is_grad_enabled


def signature(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> tuple[Any, ...]:
    """Everything that eligibility and the choice of steps may depend on, as a hashable tuple.

    Runs in every call, so it reads plain attributes only; no value of a tensor is looked at.
    """
    return (
        query.shape,
        key.shape,
        value.shape,
        query.stride(),
        key.stride(),
        value.stride(),
        query.dtype,
        key.dtype,
        value.dtype,
        query.device,
        None if mask is None else (mask.shape, mask.dtype),
        _grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad),
    )


def careful_signature(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> tuple[Any, ...]:
    """The same for operators that also mind alignment and the deterministic mode."""
    return (
        *signature(query, key, value, mask),
        _offset(query, key, value),
        torch.are_deterministic_algorithms_enabled(),
    )


def package_signature(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> tuple[Any, ...]:
    """The same for kernels of foreign packages, which mind alignment and, in the last place, the capture of a graph."""
    return (
        *signature(query, key, value, mask),
        _offset(query, key, value),
        is_captured(query),
    )


def is_captured(query: torch.Tensor) -> bool:
    """Whether a CUDA graph is being recorded where this tensor is used."""
    return query.is_cuda and torch.cuda.is_current_stream_capturing()


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor contiguous and at a multiple of 16 bytes; copied unless it is both already."""
    aligned = tensor.storage_offset() * tensor.itemsize % 16 == 0
    if aligned and tensor.is_contiguous():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _offset(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Zero if the first elements of all three are at multiples of 16 elements; else what is off, as bits."""
    return (query.storage_offset() | key.storage_offset() | value.storage_offset()) & 15


@dataclass(frozen=True)
class Call:
    """The same as named fields. ``query``, ``key``, ``value`` and ``mask`` are shapes.

    ``strides`` are those of query, key and value in elements, ``offset`` the union of their storage offsets' low
    four bits, ``grad`` whether a gradient is wanted; ``dense_last`` says that D has stride 1 in all three.
    """

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    mask: tuple[int, ...] | None = None
    strides: tuple[tuple[int, ...], ...] = ()
    offset: int = 0
    grad: bool = False
    deterministic: bool = False
    capturing: bool = False
    """Whether the call is being recorded into a CUDA graph."""
    mixed: str = ""
    """Why query, key, value and mask do not belong together; empty when they do."""

    @classmethod
    def of(
        cls, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Call:
        return cls(
            query=tuple(query.shape),
            key=tuple(key.shape),
            value=tuple(value.shape),
            dtype=query.dtype,
            device=query.device,
            mask=None if mask is None else tuple(mask.shape),
            strides=(query.stride(), key.stride(), value.stride()),
            offset=_offset(query, key, value),
            grad=torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            capturing=is_captured(query),
            mixed=_mixed(query, key, value, mask),
        )

    @property
    def batch(self) -> int:
        return self.query[0]

    @property
    def heads(self) -> int:
        return self.query[2]

    @property
    def key_heads(self) -> int:
        return self.key[2]

    @property
    def lengths(self) -> tuple[int, int]:
        """Lq and Lk."""
        return self.query[1], self.key[1]

    @property
    def head_dim(self) -> int:
        return self.query[3]

    @property
    def grouped(self) -> bool:
        return self.heads != self.key_heads

    @property
    def dense_last(self) -> bool:
        return all(strides[-1] == 1 for strides in self.strides)

    @property
    def misaligned(self) -> str:
        """Why kernels that read 16 bytes at a time would read wrong memory, or ""."""
        if not self.dense_last:
            return "the head axis has a stride"
        unit = 16 // self.dtype.itemsize
        odd = self.offset % unit or any(stride % unit for strides in self.strides for stride in strides[:-1])
        return "not aligned to 16 bytes" if odd else ""

    @property
    def score_bytes(self) -> int:
        """Bytes of one full score matrix ``[B, H, Lq, Lk]``; 16-bit inputs are scored in fp32."""
        rows, columns = self.lengths
        return self.batch * self.heads * rows * columns * max(4, self.dtype.itemsize)

    def problem(self) -> str:
        """Why this is no attention call at all, for any kernel; empty when it is one."""
        if self.mixed:
            return self.mixed
        if any(len(shape) != 4 for shape in (self.query, self.key, self.value)):
            return f"query, key and value must be [B, L, H, D], got {self.query}, {self.key}, {self.value}"
        if 0 in self.query or 0 in self.key:
            return f"a kernel cannot run on an empty axis, got query {self.query} and key {self.key}"
        if self.key != self.value:
            return f"key {self.key} and value {self.value} differ in shape"
        if (self.batch, self.head_dim) != (self.key[0], self.key[3]):
            return f"query {self.query} and key {self.key} differ in batch or head size"
        if self.heads % self.key_heads:
            return f"{self.heads} query heads cannot share {self.key_heads} key heads evenly"
        return self._mask_problem()

    def _mask_problem(self) -> str:
        if self.mask is None:
            return ""
        scores = (self.batch, self.heads, *self.lengths)
        try:
            fits = torch.broadcast_shapes(self.mask, scores) == scores
        except RuntimeError:
            fits = False
        return "" if fits else f"a mask of shape {self.mask} does not broadcast to the scores {scores}"


def _mixed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> str:
    dtypes = [str(x.dtype).removeprefix("torch.") for x in (query, key, value)]
    if len(set(dtypes)) > 1:
        return f"query, key and value are {', '.join(dtypes)}; a kernel takes one dtype"
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    devices = [str(x.device) for x in tensors]
    if len(set(devices)) > 1:
        return f"the tensors of the call are on {', '.join(dict.fromkeys(devices))}"
    if mask is not None and mask.dtype is not torch.bool:
        return f"a mask must be boolean, True for pairs that attend; this one is {mask.dtype}"
    return ""
