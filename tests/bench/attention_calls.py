"""Attention providers beside the bare library calls under them, on the two published shapes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from device_time import milliseconds_of
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: TID251 (nothing else runs in this process)

from wf_core import Host
from wf_core.api import FeatureCounters

SHAPES = {"wan_1_3b_480p": (12, 32760), "wan_ti2v_5b_704p": (24, 27280)}
HEAD = 128
REPEAT = 7
SAMPLED = 256
"""Query rows that the error is measured on, in float64."""
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _sdpa(*backends: SDPBackend) -> Call:
    def bare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if not backends:
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        with sdpa_kernel(list(backends)):
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    return bare


def _flex() -> Call:
    from torch.nn.attention.flex_attention import flex_attention

    kernel = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: kernel(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def _flash4() -> Call:
    from flash_attn.cute import flash_attn_func

    def bare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = flash_attn_func(q, k, v)
        return out[0] if isinstance(out, tuple) else out

    return bare


def _sage1() -> Call:
    from sageattention import sageattn

    return lambda q, k, v: sageattn(q, k, v, tensor_layout="NHD")


BARE: Mapping[str, Callable[[], Call]] = {
    "sdpa": _sdpa,
    "cudnn": lambda: _sdpa(SDPBackend.CUDNN_ATTENTION),
    "torch-flash": lambda: _sdpa(SDPBackend.FLASH_ATTENTION),
    "efficient": lambda: _sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "flex": _flex,
    "flash4": _flash4,
    "sage1": _sage1,
}


def provider(host: Host, name: str) -> Call:
    """The provider's own ``attend``, counted as at the seam."""
    offer = next(offer for offer in host.catalog.features() if offer.feature.name == name)
    technique = host.call_hook(
        offer.plugin, "wf_attention_provider", feature=name, options={}, facts=host.facts("tiny-wan")
    )
    technique.counters = FeatureCounters(name)
    technique.prepare({})
    return lambda q, k, v: technique.counted(q, k, v, None)


def attention_table(host: Host) -> dict[str, list[dict[str, Any]]]:
    """Shape -> one row per provider: TFLOP/s ours and bare, their ratio in time, relative L2 error to float64."""
    table = {}
    for name, (heads, length) in SHAPES.items():
        torch.manual_seed(2)
        inputs = [torch.randn(1, length, heads, HEAD, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        picked = torch.randperm(length, device="cuda")[:SAMPLED]
        exact = _exact(*inputs, picked)
        table[name] = [_row(host, feature, inputs, picked, exact) for feature in BARE]
        for row in table[name]:
            print(name, row, flush=True)
    return table


def _row(
    host: Host, feature: str, inputs: list[torch.Tensor], picked: torch.Tensor, exact: torch.Tensor
) -> dict[str, Any]:
    try:
        bare, ours = BARE[feature](), provider(host, feature)
        times = _in_turns([lambda: bare(*inputs), lambda: ours(*inputs)])
        error = float((ours(*inputs)[:, picked].double() - exact).norm() / exact.norm())
    except Exception as missing:
        return {"provider": feature, "not_run": f"{type(missing).__name__}: {missing}"[:300]}
    length, heads = inputs[0].shape[1:3]
    flops = 4 * length * length * heads * HEAD
    return {
        "provider": feature,
        "ours_ms": round(times[1], 3),
        "bare_ms": round(times[0], 3),
        "ours_tflops": round(flops / times[1] / 1e9, 1),
        "bare_tflops": round(flops / times[0] / 1e9, 1),
        "ours_over_bare": round(times[1] / times[0], 4),
        "relative_error": error,
    }


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
    q, k, v = q[:, picked].double().transpose(1, 2), k.double().transpose(1, 2), v.double().transpose(1, 2)
    return ((q * HEAD**-0.5 @ k.mT).softmax(-1) @ v).transpose(1, 2)


def _in_turns(calls: list[Callable[[], Any]]) -> list[float]:
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(REPEAT + 2):
        for call, taken in zip(calls, times, strict=True):
            elapsed = milliseconds_of(call)
            if turn > 1:
                taken.append(elapsed)
    return [statistics.median(taken) for taken in times]
