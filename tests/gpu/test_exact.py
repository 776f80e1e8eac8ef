"""The exact stack on a CUDA device: as exact as stock diffusers, no more memory, one graph, and all of it in effect."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from bench_denoiser import EXACT, errors
from denoisers import DENOISERS, build, call

from wf_core import Host

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHORT = 3


@pytest.fixture(scope="module")
def host():
    return Host.discover()


@pytest.fixture(scope="module", params=["wan_1_3b_480p", "wan_ti2v_5b_704p"])
def case(request):
    """A denoiser of published width with three blocks, and a short clip."""
    import attrs

    denoiser = DENOISERS[request.param]
    denoiser = attrs.evolve(denoiser, config={**denoiser.config, "num_layers": 3})
    latents = (*denoiser.latents[:2], SHORT, *denoiser.latents[3:])
    return attrs.evolve(denoiser, latents=latents), build(denoiser)


def peak(subject):
    subject()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    subject()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@torch.no_grad()
def test_no_further_from_float64_than_stock_block_by_block(host, case):
    denoiser, model = case
    stock, ours = errors(host, model, denoiser, {}), errors(host, model, denoiser, EXACT)
    ratios = [o / s for o, s in zip(ours, stock, strict=True)]
    print([f"{s:.3e}" for s in stock], [f"{r:.3f}" for r in ratios])
    assert max(ratios) <= 1.1
    assert max(stock) < 0.05, "the reference itself is off"


@torch.no_grad()
def test_all_of_it_takes_effect_and_needs_no_more_memory(host, case):
    denoiser, model = case
    arguments = call(denoiser)
    stock = peak(lambda: model(**arguments))
    with host.session(model, EXACT) as session, session.run(num_inference_steps=2):
        ours = peak(lambda: session.model(**arguments))
    states = {name: claim["state"] for name, claim in session.report["effective"].items()}
    assert set(states.values()) == {"effective"}, session.report["effective"]
    assert session.report["fallbacks"] == []
    kept = session.report["memory"]["held_bytes_at_end"]
    assert ours <= stock, (ours, stock, kept)


@torch.no_grad()
def test_compiled_blocks_give_the_same_in_one_graph_and_are_counted(host, case):
    from torch._dynamo.testing import CompileCounterWithBackend

    denoiser, model = case
    arguments = call(denoiser)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    with host.session(model, EXACT) as session, session.run(num_inference_steps=2):
        for _ in range(2):
            plain = session.model(**arguments)[0]
    counts = {name: claim["evidence"] for name, claim in session.report["effective"].items()}
    with host.session(model, EXACT) as session, session.run(num_inference_steps=2):
        for block in session.model.blocks:
            block.compile(backend=counter, fullgraph=True)
        for _ in range(2):
            out = session.model(**arguments)[0]
    assert counter.frame_count == 1
    assert float((out - plain).float().norm() / plain.float().norm()) < 1e-2
    for name, claim in session.report["effective"].items():
        assert claim["state"] == "effective", claim
        for counted in ("calls", "attempts", "misses"):
            assert claim["evidence"].get(counted) == counts[name].get(counted), (name, counted)
    torch._dynamo.reset()
