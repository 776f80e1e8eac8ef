"""Opening and closing a session on a 30-block Wan, beside a deep copy that shares the tensors.

Depth decides the cost, width does not: the weights are shared. So the transformer has published depth and tiny width.
"""

from __future__ import annotations

import copy
import gc
import resource
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
from table import Row, seconds, show

from wf_core import Host

REPEAT = 15
OPEN_AT_ONCE = 20
MIB = 2**20


def transformer() -> WanTransformer3DModel:
    return WanTransformer3DModel(
        num_layers=30, num_attention_heads=2, attention_head_dim=64, ffn_dim=256, text_dim=64, freq_dim=64
    ).eval()


def pipeline() -> WanPipeline:
    vae = AutoencoderKLWan(base_dim=16).eval()
    return WanPipeline(None, None, vae, FlowMatchEulerDiscreteScheduler(shift=3.0), transformer())


def deep_copy(module: torch.nn.Module) -> torch.nn.Module:
    """The peer: ``copy.deepcopy`` told to keep every tensor."""
    shared = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})


def python_mib(make: Callable[[], object]) -> float:
    """MiB of Python objects that one more open session holds."""
    first = make()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    second = make()
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del first, second
    return held / MIB


def resident_mib(make: Callable[[], object]) -> float:
    """MiB of resident memory for each of many that are open at once."""
    gc.collect()
    before = _resident()
    held = [make() for _ in range(OPEN_AT_ONCE)]
    grown = _resident() - before
    del held
    gc.collect()
    return max(grown, 0) / OPEN_AT_ONCE / MIB


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    torch.set_num_threads(1)
    host, pipe = Host.discover(), pipeline()
    model: Any = pipe.transformer

    def open_and_close(base: Any) -> None:
        with host.session(base, {}):
            pass

    rows = [
        Row(
            "session on the transformer, open + close",
            seconds(lambda: open_and_close(model), REPEAT) * 1e3,
            "ms",
            60,
        ),
        Row(
            "session on the pipeline, open + close",
            seconds(lambda: open_and_close(pipe), REPEAT) * 1e3,
            "ms",
            60,
        ),
        Row("peer: deepcopy of the transformer", seconds(lambda: deep_copy(model), REPEAT) * 1e3, "ms"),
    ]
    with ExitStack() as stack:

        def session(base: Any) -> object:
            return stack.enter_context(host.session(base, {}))

        rows += [
            Row("session on the transformer, Python objects", python_mib(lambda: session(model)), "MiB", 4),
            Row("session on the pipeline, Python objects", python_mib(lambda: session(pipe)), "MiB", 4),
            Row("session on the pipeline, resident", resident_mib(lambda: session(pipe)), "MiB", 4),
        ]
        # While the sessions are open: memory that they gave back would hide what a copy takes.
        rows += [
            Row(
                "peer: deepcopy of the transformer, Python objects",
                python_mib(lambda: deep_copy(model)),
                "MiB",
            ),
            Row("peer: deepcopy of the transformer, resident", resident_mib(lambda: deep_copy(model)), "MiB"),
        ]
    note = f"median of {REPEAT}; resident memory over {OPEN_AT_ONCE} open at once; pipeline: with VAE, no text encoder"
    show("Session on a 30-block Wan", rows, note)


if __name__ == "__main__":
    main()
