"""What the tests share: a provider with counters that can be read, and inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from support.attention import reference, relative_error
from wf_core.api import AttentionProvider
from wf_plugin_attention_sdpa.providers import PROVIDERS

__all__ = ["inputs", "provider", "reference", "relative_error"]


class Tally:
    """Counters as the host gives them, kept where a test can look."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: list[str] = []

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount

    def fall_back(self, seam: str, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def provider() -> Callable[[str], AttentionProvider]:
    """A provider by feature name, as a session would build it."""

    def make(feature: str) -> AttentionProvider:
        made = PROVIDERS[feature]()
        made.counters = Tally()  # type: ignore[assignment]
        return made

    return make


@pytest.fixture
def inputs() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Query, key and value in BLHD from a fixed seed."""

    def make(
        lq=33, lk=17, heads=3, size=64, dtype=torch.float32, batch=2, key_heads=None, device="cpu", seed=0
    ):
        generator = torch.Generator().manual_seed(seed)
        shapes = [(batch, lq, heads, size)] + 2 * [(batch, lk, key_heads or heads, size)]
        return tuple(torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)

    return make
