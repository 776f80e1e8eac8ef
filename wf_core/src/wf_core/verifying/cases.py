"""The attention calls that a provider is tried on: shapes, layouts, masks and kinds of values.

Layout letters: B batch, L tokens (Lq of the query, Lk of key and value), H heads (Hk of key and value), D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from attrs import frozen

MASKS = ("", "shared", "keys", "empty-rows")
VIEWS = ("", "fused", "heads-first", "strided-heads")
VALUES = ("normal", "peaked", "biased")
ATTENDS = 0.7
"""The share of pairs that attend under a random mask."""
BIAS = 2.0
"""Standard deviation of the bias that all keys of a channel share; the keys' own is 1."""


@frozen
class Case:
    """One kind of call. ``key_heads`` 0 means as many as ``heads``.

    ``mask``: "" none; "shared" ``[Lq, Lk]``; "keys" ``[B, 1, 1, Lk]``, the padding of a prompt; "empty-rows"
    ``[B, 1, Lq, Lk]`` with rows that attend to nothing. No row attends to the last key of any mask. ``views``: how the
    tensors lie in memory: "" contiguous, "fused" slices of one projection (Lq = Lk), "heads-first" transposed from
    BHLD, "strided-heads" with a stride on the D axis. ``values``: "normal"; "peaked", keys close to queries; "biased",
    one constant per channel added to all keys.
    """

    lq: int
    lk: int
    heads: int
    head_dim: int
    batch: int = 1
    key_heads: int = 0
    mask: str = ""
    views: str = ""
    values: str = "normal"

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.key_heads}" if self.key_heads else str(self.heads)
        words = [f"B{self.batch} Lq{self.lq} Lk{self.lk} H{heads} D{self.head_dim}"]
        words += [f"mask {self.mask}"] * bool(self.mask) + [f"views {self.views}"] * bool(self.views)
        return ", ".join(words + [f"{self.values} values"] * (self.values != "normal"))


@frozen(eq=False)
class Inputs:
    """``query`` ``[B, Lq, H, D]``, ``key`` and ``value`` ``[B, Lk, Hk, D]``, ``mask`` boolean or None."""

    case: Case
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None


SMALL = (
    Case(257, 257, 12, 64),
    Case(130, 77, 12, 128),
    Case(127, 127, 3, 80, batch=2),
    Case(130, 130, 3, 64, mask="shared"),
    Case(130, 130, 12, 64, key_heads=3),
    Case(130, 77, 3, 128, batch=2, mask="keys"),
    Case(257, 257, 3, 128, views="fused"),
    Case(127, 127, 3, 96, batch=2, mask="empty-rows"),
    Case(257, 257, 3, 128, values="peaked"),
    Case(257, 257, 12, 64, values="biased"),
    Case(1, 1, 1, 64),
    Case(17, 17, 3, 80),
    Case(257, 226, 3, 96),
    Case(127, 512, 12, 128),
    Case(130, 226, 12, 128, key_heads=1, batch=2),
    Case(130, 130, 12, 64, views="heads-first"),
    Case(17, 17, 3, 96, views="strided-heads"),
    Case(127, 226, 12, 64, key_heads=3, batch=2, mask="empty-rows", values="peaked"),
    Case(130, 512, 1, 80, mask="shared", values="biased"),
    Case(127, 127, 12, 128, mask="keys", views="fused"),
)
"""Ordered so that the first ten have every trait once."""
LARGE = (
    Case(4096, 4096, 12, 128),
    Case(4096, 4096, 3, 64, values="biased"),
    Case(4096, 512, 12, 128, mask="keys"),
    Case(32760, 32760, 12, 128),
)
"""For accelerators: the last is the self-attention of Wan at 832x480x81."""


def schedule(inputs: int, device: torch.device) -> Iterator[Case]:
    """``inputs`` cases: every one once, the large ones too where the device is no CPU, then the small ones again."""
    first = SMALL if device.type == "cpu" else (*SMALL, *LARGE)
    for index in range(inputs):
        yield first[index] if index < len(first) else _again(SMALL, index - len(first))


def _again(cases: Sequence[Case], index: int) -> Case:
    return cases[index % len(cases)]


def make(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> Inputs:
    """The tensors of a case, the same for the same seed on the same device."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    key_heads = case.key_heads or case.heads
    query = normal(case.batch, case.lq, case.heads, case.head_dim)
    key = normal(case.batch, case.lk, key_heads, case.head_dim)
    value = normal(case.batch, case.lk, key_heads, case.head_dim)
    if case.values == "peaked":
        rows = torch.arange(case.lk, device=device) % case.lq
        key = query[:, rows, :: case.heads // key_heads] + 0.1 * key
    if case.values == "biased":
        key = key + BIAS * normal(1, 1, key_heads, case.head_dim)
    query, key, value = _laid_out(case.views, *(x.to(dtype) for x in (query, key, value)))
    return Inputs(case, query, key, value, _mask(case, generator, device))


def _mask(case: Case, generator: torch.Generator, device: torch.device) -> torch.Tensor | None:
    shapes = {
        "shared": (case.lq, case.lk),
        "keys": (case.batch, 1, 1, case.lk),
        "empty-rows": (case.batch, 1, case.lq, case.lk),
    }
    if case.mask not in shapes:
        return None
    mask = torch.rand(shapes[case.mask], generator=generator, device=device) < ATTENDS
    mask[..., 0] = True  # no row is empty by chance
    mask[..., -1] = False
    if case.mask == "empty-rows":
        mask[..., 1::7, :] = False
    return mask


def _laid_out(
    views: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same values, lying in memory as a model would leave them."""
    if views == "fused":
        size = query.shape[-1]
        fused = torch.cat([query, key, value], dim=-1)
        return fused[..., :size], fused[..., size : 2 * size], fused[..., 2 * size :]
    axes = {"heads-first": (1, 2), "strided-heads": (2, 3)}.get(views)
    if axes is None:
        return query, key, value
    query, key, value = (x.transpose(*axes).contiguous().transpose(*axes) for x in (query, key, value))
    return query, key, value
