"""The fused kernels on a CUDA device: time, and bytes that must move per second, each beside the stock expression.

A kernel reads and writes every element once, so that its floor is a copy of as many bytes: the first row measures one.
Each is called as a session calls it, through its dispatch: judged and planned once, looked up and counted every time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from device_time import milliseconds_of
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.normalization import RMSNorm
from table import Row, show
from torch.nn import functional as F

from wf_core.api import FeatureCounters
from wf_plugin_fused_wan import feed_forward, gated_residual, norm_modulate, norm_rope
from wf_plugin_fused_wan.dispatch import Dispatch, Kernel
from wf_plugin_fused_wan.norm_rope import Form
from wf_plugin_fused_wan.rope import FusedRope

HEAD = 128
SHAPES = ((32760, 1536), (27280, 3072), (8192, 5120))
HIDDEN = {1536: 8960, 3072: 14336, 5120: 13824}
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
        taken.append(milliseconds_of(call) * 1e3)
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


def served(name: str, module: Any, *args: Any) -> Callable[[], Any]:
    """A call as a session makes it, less the handler and the seam. Ends the process where no kernel serves it."""
    kernel = Kernel(name, name, module.reference, module.plan, module.ineligible)
    calls, counters = Dispatch(kernel), FeatureCounters(name)
    calls(counters, *args)
    if calls.reasons():
        sys.exit(f"bench_kernels: {name} is not computed by its kernel: {'; '.join(calls.reasons())}")
    return lambda: calls(counters, *args)


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
        served("norm_modulate", norm_modulate, x, None, None, scale, shift, None, 1e-6),
        lambda: stock_norm(x, scale, shift),
    )
    found += rows(
        f"norm_modulate, two times, {shape}",
        peak,
        2 * x.nbytes,
        served("norm_modulate", norm_modulate, x, None, None, few[:, :, 0], few[:, :, 1], index, 1e-6),
        lambda: stock_norm(x, dense[:, :, 0], dense[:, :, 1]),
    )
    found += rows(
        f"gated_residual {shape}",
        peak,
        3 * x.nbytes,
        served("gated_residual", gated_residual, x, out, gate, None),
        lambda: gated_residual.reference(x, out, gate, None),
    )
    found += rows(
        f"gated_residual in place {shape}",
        peak,
        3 * x.nbytes,
        served("gated_residual", gated_residual, x.clone(), out, gate, None, True),
        lambda: gated_residual.reference(x, out, gate, None),
    )
    found += rows(
        f"gated_residual, two times, {shape}",
        peak,
        3 * x.nbytes,
        served("gated_residual", gated_residual, x, out, few[:, :, 2], index),
        lambda: gated_residual.reference(x, out, dense[:, :, 2], None),
    )
    return found


def rotation(tokens: int, width: int, peak: float) -> list[Row]:
    """Query and key of one self-attention."""
    query, key = (torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    angles = torch.rand(1, tokens, 1, HEAD // 2, device="cuda").repeat_interleave(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    moved = 4 * query.nbytes + 2 * cos.nbytes
    found = []
    for double in (False, True):
        form = Form(width // HEAD, (1e-6, 1e-6), double=double)
        ours = served("rope", norm_rope, query, key, weight, weight, cos, sin, form)

        def stock() -> object:
            return stock_rotation(query, weight, cos, sin), stock_rotation(key, weight, cos, sin)

        name = f"norm_rope {'fp64' if double else 'fp32'} {tokens} x {width}"
        found += rows(name, peak, moved, ours, stock)
    return found


def rotation_by_head(what: str, tokens: int, heads: int, peak: float) -> list[Row]:
    """Query and key of one joint attention of HunyuanVideo, or of one self-attention of Cosmos."""
    query, key = (torch.randn(1, tokens, heads * HEAD, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    norms = [RMSNorm(HEAD, eps=1e-6).to("cuda", torch.bfloat16) for _ in range(2)]
    angles = torch.rand(tokens, HEAD // 2, device="cuda")
    halves = what == "cosmos"
    angles = torch.cat([angles, angles], dim=-1) if halves else angles.repeat_interleave(2, dim=-1)
    tables = angles.cos(), angles.sin()
    args = FusedRope(what).arguments(
        query, key, *(norm.weight for norm in norms), (1e-6, 1e-6), heads, tables
    )

    def stock_of(norm: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(2, (heads, HEAD))
        if not halves:
            return apply_rotary_emb(norm(x), tables, sequence_dim=1)
        return apply_rotary_emb(norm(x.transpose(1, 2)), tables, use_real_unbind_dim=-2).transpose(1, 2)

    return rows(
        f"norm_rope {what} {tokens} x {heads * HEAD}",
        peak,
        4 * query.nbytes + 2 * tables[0].nbytes,
        served("rope", norm_rope, *args),
        lambda: [stock_of(norm, x) for norm, x in zip(norms, (query, key), strict=True)],
    )


def product(tokens: int, width: int) -> list[Row]:
    """The first product of a feed-forward with its GELU: bound by arithmetic, so that there is no rate to give."""
    hidden = HIDDEN[width]
    x = torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(hidden, width, device="cuda", dtype=torch.bfloat16) / width**0.5
    bias = torch.randn(hidden, device="cuda", dtype=torch.bfloat16)
    return [
        Row(
            f"product with GELU {tokens} x {width} to {hidden}",
            microseconds(lambda: feed_forward.launch(x, weight, bias)),
            "us",
        ),
        Row("  stock", microseconds(lambda: feed_forward.reference(x, weight, bias)), "us"),
    ]


@torch.no_grad()
def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("bench_kernels needs a CUDA device, and there is none here")
    torch.manual_seed(0)
    peak = copied()
    found = [Row("copy of 512 MiB", peak / 1e3, "GB/s")]
    for tokens, width in SHAPES:
        found += modulation(tokens, width, peak) + rotation(tokens, width, peak) + product(tokens, width)
    found += rotation_by_head("cosmos", 84480, 16, peak) + rotation_by_head("hunyuan", 118800, 24, peak)
    note = f"targets: {SHARE:.0%} of the rate of the copy; bfloat16; {torch.cuda.get_device_name()}"
    show("Fused kernels, one call", found, note)


if __name__ == "__main__":
    main()
