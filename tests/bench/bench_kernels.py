"""The fused kernels on a CUDA device: time, and bytes that must move per second, each beside the stock expression.

A kernel reads and writes every element once, so that its floor is a copy of as many bytes: the last rows measure one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from table import Row, show
from torch.nn import functional as F

from wf_plugin_fused_wan import gated_residual, norm_modulate, norm_rope
from wf_plugin_fused_wan.norm_rope import Form

HEAD = 128
SHAPES = ((32760, 1536), (27280, 3072), (8192, 5120))
WARM_UP, REPEAT = 5, 30
AHEAD = 1_000_000
"""Cycles that the device sleeps before what is measured: some 0.5 ms."""
HOST_CALLS = 200
SHARE = 0.75
"""Of a copy's bytes per second that a kernel should reach."""


def microseconds(call: Callable[[], object]) -> float:
    """The median time of one call on the device, by events. The device sleeps first, so that the host is ahead."""
    for _ in range(WARM_UP):
        call()
    taken = []
    for _ in range(REPEAT):
        torch.cuda._sleep(AHEAD)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        taken.append(start.elapsed_time(stop) * 1e3)
    return statistics.median(taken)


def on_the_host(call: Callable[[], object]) -> float:
    """Microseconds that one call keeps the host, measured while the device is behind."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / HOST_CALLS * 1e6


def copied() -> float:
    """Bytes per microsecond, read and written, of a device copy of 512 MiB."""
    x = torch.empty(2**28, dtype=torch.bfloat16, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / microseconds(lambda: y.copy_(x))


def rows(what: str, peak: float, moved: int, ours: Callable[[], Any], stock: Callable[[], Any]) -> list[Row]:
    """One kernel: time, rate, and the stock expression's time. ``moved``: bytes that must move."""
    took = microseconds(ours)
    return [
        Row(what, took, "us", moved / peak / SHARE),
        Row("  moves, of what must move", moved / took / 1e3, "GB/s"),
        Row("  host", on_the_host(ours), "us", 20),
        Row("  stock", microseconds(stock), "us"),
    ]


def stock_norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return (F.layer_norm(x.float(), x.shape[-1:], None, None, 1e-6) * (1 + scale) + shift).type_as(x)


def stock_rotation(
    x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """diffusers' norm and rotation, with its tables of repeated values."""
    x = F.rms_norm(x, x.shape[-1:], weight, 1e-6).unflatten(2, (-1, HEAD))
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[..., 0::2], sin[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = first * cos - second * sin
    out[..., 1::2] = first * sin + second * cos
    return out


def modulation(tokens: int, width: int, peak: float) -> list[Row]:
    """Norms and residuals of one block."""
    x, out = (torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    scale, shift, gate = (torch.randn(1, 6, width, device="cuda").chunk(6, dim=1)[i] for i in range(3))
    few = torch.randn(1, 2, 6, width, device="cuda")
    index = (torch.arange(tokens, device="cuda") > tokens // 30).long().unsqueeze(0)
    dense = few[:, index[0]]  # [1, L, 6, D], as the stock model has it with a timestep per token
    shape = f"{tokens} x {width}"
    found = rows(
        f"norm_modulate {shape}",
        peak,
        2 * x.nbytes,
        lambda: norm_modulate.launch(x, None, None, scale, shift, None, 1e-6),
        lambda: stock_norm(x, scale, shift),
    )
    found += rows(
        f"norm_modulate, two times, {shape}",
        peak,
        2 * x.nbytes,
        lambda: norm_modulate.launch(x, None, None, few[:, :, 0], few[:, :, 1], index, 1e-6),
        lambda: stock_norm(x, dense[:, :, 0], dense[:, :, 1]),
    )
    found += rows(
        f"gated_residual {shape}",
        peak,
        3 * x.nbytes,
        lambda: gated_residual.launch(x, out, gate, None),
        lambda: gated_residual.reference(x, out, gate, None),
    )
    found += rows(
        f"gated_residual, two times, {shape}",
        peak,
        3 * x.nbytes,
        lambda: gated_residual.launch(x, out, few[:, :, 2], index),
        lambda: gated_residual.reference(x, out, dense[:, :, 2], None),
    )
    return found


def rotation(tokens: int, width: int, peak: float) -> list[Row]:
    """Query and key of one self-attention."""
    query, key = (torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    angles = torch.rand(1, tokens, 1, HEAD // 2, device="cuda").repeat_interleave(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    halves = norm_rope.half_tables(cos, sin)
    moved = 4 * query.nbytes + 2 * halves[0].nbytes
    found = []
    for double in (False, True):
        form = Form(width // HEAD, (1e-6, 1e-6), double=double)

        def ours(form: Form = form) -> object:
            return norm_rope.launch(query, key, weight, weight, *halves, form)

        def stock() -> object:
            return stock_rotation(query, weight, cos, sin), stock_rotation(key, weight, cos, sin)

        name = f"norm_rope {'fp64' if double else 'fp32'} {tokens} x {width}"
        found += rows(name, peak, moved, ours, stock)
    return found


@torch.no_grad()
def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("bench_kernels needs a CUDA device, and there is none here")
    torch.manual_seed(0)
    peak = copied()
    found = [Row("copy of 512 MiB", peak / 1e3, "GB/s")]
    for tokens, width in SHAPES:
        found += modulation(tokens, width, peak) + rotation(tokens, width, peak)
    note = f"targets: {SHARE:.0%} of the rate of the copy; bfloat16; {torch.cuda.get_device_name()}"
    show("Fused kernels, one call", found, note)


if __name__ == "__main__":
    main()
