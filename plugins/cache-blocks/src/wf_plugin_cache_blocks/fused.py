"""Comparing a block's input with a former one, and keeping it, in one pass over both: a Triton kernel, on CUDA.

With torch's operators each of the copy, the difference and the two sums is a pass of its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PART = 2048
"""Elements of a sample that are added at once, in fp32."""


def serves(sample: torch.Tensor) -> bool:
    """Whether the kernel takes hidden states ``[B, L, D]``: its dtype, on a CUDA device where Triton works."""
    return sample.is_cuda and sample.dtype in DTYPES and _works(sample.device)


def compare(
    sample: torch.Tensor, kept: torch.Tensor, *, compares: bool, keeps: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``sum |sample - kept|`` and ``sum |sample|`` of the parts of each sample, ``[B, n]`` in fp32 each.

    ``sample`` ``[B, L, D]`` with any strides; ``kept``, of its shape and dtype, is contiguous and becomes ``sample``
    where that is to be kept. The first result is undefined where nothing is compared, the second where nothing is kept.
    """
    batch, elements = sample.shape[0], sample[0].numel()
    parts = -(-elements // PART)
    moved, sizes = torch.empty((2, batch, parts), dtype=torch.float32, device=sample.device)
    run = _kernel()[parts, batch]
    arguments = (sample, kept, moved, sizes, elements, *sample.stride())
    constants: dict[str, Any] = dict(WIDTH=sample.shape[-1], COMPARES=compares, KEEPS=keeps, BLOCK=PART)
    if not sample.is_cuda:  # Triton's interpreter
        run(*arguments, **constants)
    else:
        with torch.cuda.device(sample.device):
            run(*arguments, **constants)
    return moved, sizes


@cache
def _kernel() -> Any:
    from wf_plugin_cache_blocks.compare_kernel import compare_kernel

    return compare_kernel


@cache
def _works(device: torch.device) -> bool:
    """Whether Triton is there and can compile for the device: tried once, on a few numbers."""
    numbers = torch.ones(1, 1, 8, device=device)
    try:
        moved, sizes = compare(numbers, torch.zeros_like(numbers), compares=True, keeps=True)
    except Exception:
        return False
    return bool(moved.sum() == 8) and bool(sizes.sum() == 8)
