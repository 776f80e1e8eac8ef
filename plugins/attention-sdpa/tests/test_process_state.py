"""A backend is chosen by calling its operator: no flag is read or written, so threads cannot meet."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

OWN = {
    "math": "aten::_scaled_dot_product_attention_math",
    "torch-flash": "aten::_scaled_dot_product_flash_attention_for_cpu",
}


def flags() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )


class Recorder(TorchDispatchMode):
    """Every operator that runs in this thread, and the flags while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.flags: set[tuple[bool, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.name()] += 1
        self.flags.add(flags())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", ["sdpa", "math", "torch-flash"])
def test_flags_are_the_same_during_and_after(backend, provider, inputs):
    before = flags()
    with torch.no_grad(), Recorder() as seen:
        provider(backend).attend(*inputs(), None)
    assert seen.flags == {before}
    assert flags() == before


def test_uncompiled_flex_is_no_compilation(provider, inputs, monkeypatch):
    """The public function would set compiler state of the process, and warn."""
    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: pytest.fail("torch.compile was called"))
    before = flags()
    provider("flex").attend(*inputs(), None)
    assert flags() == before


@pytest.fixture
def flash_off():
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    yield
    torch.backends.cuda.enable_flash_sdp(before)


def test_a_policy_of_the_process_does_not_reach_a_named_backend(flash_off, provider, inputs):
    with torch.no_grad(), Recorder() as seen:
        provider("torch-flash").attend(*inputs(), None)
    assert seen.names[OWN["torch-flash"]] == 1


def test_two_threads_each_run_their_own_operator(provider, inputs):
    calls, start = 25, threading.Barrier(3)
    results: dict[str, tuple[Counter[str], torch.Tensor]] = {}

    def work(backend: str, features: tuple[str, ...]) -> None:
        q, k, v = inputs(size=16)
        served = [provider(feature) for feature in features]
        with torch.no_grad(), Recorder() as seen:
            start.wait()
            for _ in range(calls):
                outs = [one.attend(q, k, v, None) for one in served]
        results[backend] = (seen.names, outs[0])

    threads = [
        threading.Thread(target=work, args=(name, (name,))) for name in ("math", "torch-flash", "sdpa")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    flash = OWN["torch-flash"]
    assert results["torch-flash"][0][flash] == calls
    assert results["sdpa"][0][flash] == calls, "the default beside them keeps its own choice"
    assert results["math"][0][flash] == 0
    assert results["math"][0]["aten::bmm"] == 2 * calls, "math is made of two matrix products"
    assert results["torch-flash"][0]["aten::bmm"] == 0


def test_evidence_names_the_operator(provider, inputs):
    for backend, name in OWN.items():
        used = provider(backend)
        used.attend(*inputs(), None)
        assert used.evidence() == {"operators": {name: 1}, "around": []}
