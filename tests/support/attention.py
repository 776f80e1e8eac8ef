"""Fixtures of attention tests: inputs, the float64 reference, a device that is said to be there, packages made up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from wf_lib_attention.machine import Machine


@pytest.fixture
def inputs() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Query, key and value in BLHD from a fixed seed."""

    def make(lq=33, lk=17, heads=4, size=64, dtype=torch.float16, batch=2, key_heads=None, device="cpu"):
        generator = torch.Generator().manual_seed(0)
        shapes = [(batch, lq, heads, size)] + 2 * [(batch, lk, key_heads or heads, size)]
        return tuple(torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)

    return make


@pytest.fixture
def reference() -> Callable[..., torch.Tensor]:
    """Attention in float64 by its definition, zeros for rows that attend to nothing; BLHD in and out."""

    def compute(query, key, value, mask=None):
        group = query.shape[2] // key.shape[2]
        query, key, value = (x.double().transpose(1, 2) for x in (query, key, value))
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return (torch.softmax(scores, dim=-1).nan_to_num() @ value).transpose(1, 2)

    return compute


@pytest.fixture
def relative_error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """The L2 norm of the difference over that of the reference."""
    return lambda out, exact: ((out.double() - exact).norm() / exact.norm()).item()


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Calls on the CPU are judged as if they were on a device of this compute capability."""

    def of(*capability: int) -> None:
        monkeypatch.setattr(Machine, "of", classmethod(lambda cls, device: cls(capability)))

    return of


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Puts a module of some name, with some functions, in the place of what may be installed."""

    def put(name: str, **functions: Any) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put
