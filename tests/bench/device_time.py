"""The time of one call: on a CUDA device between two events, elsewhere by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def milliseconds_of(call: Callable[[], object], device: str = "cuda") -> float:
    """Runs the call and waits for it."""
    if device != "cuda":
        started = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - started)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
