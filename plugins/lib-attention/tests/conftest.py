"""What the tests share: inputs, the float64 reference, a device that is said to be there, and packages made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from support.attention import package, reference, relative_error
from wf_lib_attention.machine import Machine

__all__ = ["hopper", "inputs", "package", "reference", "relative_error", "tally"]


class Tally:
    """Counters as the host gives them, kept where a test can look."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount


@pytest.fixture
def inputs() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Query, key and value in BLHD from a fixed seed."""

    def make(lq=33, lk=17, heads=3, size=64, dtype=torch.float32, batch=2, key_heads=None):
        generator = torch.Generator().manual_seed(0)
        shapes = [(batch, lq, heads, size)] + 2 * [(batch, lk, key_heads or heads, size)]
        return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)

    return make


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls on the CPU are judged as if they were on sm90."""
    monkeypatch.setattr(Machine, "of", classmethod(lambda cls, device: cls((9, 0), 91501)))


@pytest.fixture
def tally() -> Tally:
    """Counters that can be read."""
    return Tally()
