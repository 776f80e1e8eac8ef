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
MOST = 2**31
"""Elements of one sample, whose offsets are 32 bit."""


def why_not(sample: torch.Tensor) -> str:
    """Why the kernel does not take hidden states ``[B, L, D]``; "" where it does."""
    if not sample.is_cuda:
        return f"the model is on {sample.device.type}"
    if sample.dtype not in DTYPES:
        return f"the hidden states are {str(sample.dtype).removeprefix('torch.')}"
    if sample[0].numel() >= MOST:
        return "a sample's offsets do not fit into 32 bit"
    return _broken(sample.device)


def compare(
    sample: torch.Tensor, kept: torch.Tensor, *, compares: bool, keeps: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``sum |sample - kept|`` and ``sum |sample|`` of the parts of each sample, ``[B, n]`` in fp32 each.

    ``sample`` ``[B, L, D]`` with any strides; ``kept``, of its shape and dtype, is contiguous and becomes ``sample``
    where that is to be kept. The first result is undefined where nothing is compared, the second where nothing is kept.
    """
    batch, elements = sample.shape[0], sample[0].numel()
    parts = -(-elements // PART)
    moved, sizes = (torch.empty((batch, parts), dtype=torch.float32, device=sample.device) for _ in range(2))
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
def _broken(device: torch.device) -> str:
    """Why Triton cannot serve a device: tried once, on a few numbers. Out-of-memory comes through."""
    numbers = torch.ones(1, 1, 8, device=device)
    try:
        moved, sizes = compare(numbers, torch.zeros_like(numbers), compares=True, keeps=True)
        right = moved.item() == sizes.item() == 8.0
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler that is missing shows itself in many ways
        return f"Triton: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "" if right else "Triton: a sum of eight ones was wrong"
