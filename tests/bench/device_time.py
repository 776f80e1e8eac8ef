"""The time of one call on a CUDA device, between two events."""

from __future__ import annotations

from collections.abc import Callable

import torch


def milliseconds_of(call: Callable[[], object]) -> float:
    """Runs the call and waits for it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
