"""What the launchers share: row sizes, the device, and the dtypes that kernels take."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MOST_WIDTH = 8192
"""Elements of one row, which one program holds in registers in fp32."""


def power_above(number: int) -> int:
    """The least power of two that is not below ``number``."""
    return 1 << (number - 1).bit_length()


@cache
def programs(device: torch.device, per_processor: int) -> int:
    """How many programs keep a device busy; few on the CPU, where the interpreter runs them one by one."""
    if device.type != "cuda":
        return 2
    return per_processor * torch.cuda.get_device_properties(device).multi_processor_count


def launcher(
    kernel: Any, device: torch.device, grid: tuple[int, ...], constants: dict[str, Any]
) -> Callable[..., None]:
    """What runs a kernel on ``device``, which is not always the current one, when called with the other arguments."""
    if 0 in grid:
        return _nothing  # there are no tokens
    run = kernel[grid]
    if device.type != "cuda":
        return lambda *arguments: run(*arguments, **constants)
    current, index = torch.cuda.current_device, device.index

    def guarded(*arguments: Any) -> None:
        if index == current():  # costs less than the guard
            run(*arguments, **constants)
            return
        with torch.cuda.device(index):
            run(*arguments, **constants)

    return guarded


def _nothing(*arguments: Any) -> None:
    pass


def adjacent(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy whose channels are adjacent in memory: the first block gets the patches as a view across them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def unfit(
    name: str,
    x: torch.Tensor,
    like: torch.Tensor,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    *,
    copied: bool = False,
) -> str:
    """Why a kernel cannot read ``x``, called ``name``, beside ``like``; "" when it can. ``copied``: it is given
    ``adjacent(x)``.
    """
    if x.device != like.device:
        return f"{name} is on {x.device}, and the hidden states are on {like.device}"
    if x.dtype not in dtypes:
        return f"{name} is {_short(x.dtype)}, and the kernel takes {' or '.join(map(_short, dtypes))}"
    if x.stride(-1) != 1 and not copied:
        return f"the channels of {name} are not adjacent in memory (stride {x.stride(-1)})"
    return ""


def unfit_rows(name: str, rows: torch.Tensor, index: torch.Tensor | None, x: torch.Tensor) -> str:
    """Why modulation rows do not fit ``x`` ``[B, L, D]``: in fp32 or x's dtype ``[B or 1, 1 or L, D]``, with an index
    ``[B, N, D]``.
    """
    reason = unfit(name, rows, x, tuple(dict.fromkeys((torch.float32, x.dtype))))
    if reason:
        return reason
    batch, tokens, width = x.shape
    if rows.ndim != 3 or rows.shape[-1] != width or rows.shape[0] not in (1, batch):
        return f"{name} is {list(rows.shape)}, and the hidden states are {list(x.shape)}"
    if index is None:
        known = rows.shape[1] in (1, tokens)
        return "" if known else f"{name} has {rows.shape[1]} rows for {tokens} tokens and no index"
    if index.shape != (batch, tokens) or index.dtype != torch.int64 or index.device != x.device:
        return f"the index of {name} is {_short(index.dtype)} {list(index.shape)} on {index.device}"
    return "" if index.stride(1) == 1 else f"the index of {name} is not contiguous"


def row_strides(rows: torch.Tensor, index: torch.Tensor | None) -> tuple[int, int]:
    """Strides from batch to batch and from row to row; 0 where one row serves all."""
    batch = rows.stride(0) if rows.shape[0] > 1 else 0
    return batch, rows.stride(1) if rows.shape[1] > 1 or index is not None else 0


def needs_gradient(*tensors: torch.Tensor | None) -> str:
    """Why a kernel without a backward pass may not serve; "" when no gradient is recorded."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        return "a gradient would be recorded here, and the kernels have no backward pass"
    return ""


def gathered(rows: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
    """``[B, N, D]`` by ``index`` ``[B, L]`` -> ``[B, L, D]``; as it is without an index."""
    if index is None:
        return rows
    batch, tokens = index.shape
    wide = rows.expand(batch, *rows.shape[1:])
    return wide.gather(1, index.unsqueeze(-1).expand(batch, tokens, rows.shape[-1]))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
