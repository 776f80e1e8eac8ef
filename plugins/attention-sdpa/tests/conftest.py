"""What the tests share: a provider with counters that can be read, inputs, and the float64 reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from wf_core.api import AttentionProvider
from wf_plugin_attention_sdpa.providers import PROVIDERS


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
