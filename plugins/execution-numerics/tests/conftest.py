"""What the tests share: a tiny Wan transformer, one call of it, a host, and something that looks around inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel

from wf_core import Host
from wf_core.api import Handler, Technique, seeded
from wf_core.testing import ProcessState, host_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "text_dim": 16,
    "freq_dim": 256,
    "ffn_dim": 32,
    "num_layers": 2,
    "rope_max_seq_len": 32,
}


class Spy(Technique):
    """Does something inside each transformer call, below all other features; ``found`` is what came of it."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look
        self.found: list[Any] = []

    def handlers(self) -> Mapping[str, Handler]:
        return {"denoiser": self._around}

    def _around(self, inner: Callable[..., Any], site: Any, *args: Any) -> Any:
        self.found.append(self._look())
        return inner(*args)


@pytest.fixture(scope="session")
def model() -> WanTransformer3DModel:
    """Random weights in float32. Shared: a session may leave nothing on it."""
    return seeded(WanTransformer3DModel, **CONFIG)


@pytest.fixture
def host() -> Host:
    return host_of("wf_plugin_execution_numerics", "wf_plugin_wan")


def inputs(dtype: torch.dtype = torch.float32, device: str = "cpu") -> dict[str, Any]:
    """The arguments of one call: 12 tokens, 5 of text."""
    generator = torch.Generator().manual_seed(3)
    latents, text = (torch.randn(shape, generator=generator) for shape in ((1, 16, 2, 4, 6), (1, 5, 16)))
    return {
        "hidden_states": latents.to(device, dtype),
        "timestep": torch.tensor([500], device=device),
        "encoder_hidden_states": text.to(device, dtype),
        "return_dict": False,
    }


@pytest.fixture
def call() -> Callable[..., dict[str, Any]]:
    return inputs


@pytest.fixture
def run(host: Host, model: WanTransformer3DModel) -> Callable[..., tuple[torch.Tensor, Any, Any]]:
    """``run(request, look)``: one transformer call in a session; output, report, and what ``look`` gave inside."""

    def do(
        request: Mapping[str, Any], look: Callable[[], Any] = lambda: None, on: Host | None = None
    ) -> tuple[torch.Tensor, Any, Any]:
        spy = Spy(look)
        with (on or host).session(model, request, extra={"spy": spy}) as session:
            with torch.no_grad(), session.run(num_inference_steps=1):
                out = session.model(**inputs(session.model.dtype))[0]
        return out, session.report, spy.found[0]

    return do


@pytest.fixture(autouse=True)
def process_is_left_alone() -> Iterator[None]:
    """Every test, whatever it does, leaves the process as it found it."""
    before = dict(ProcessState.capture().values)
    yield
    assert dict(ProcessState.capture().values) == before
