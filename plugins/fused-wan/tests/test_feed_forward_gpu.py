"""``fused-gelu`` on a CUDA device: error against float64 beside stock's, and what it needs beside what stock needs."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.attention import FeedForward
from fused_by_hand import ready

from support import models
from wf_core.testing import host_of
from wf_plugin_fused_wan.feed_forward import FusedGelu, ineligible, launch, reference

pytestmark = pytest.mark.gpu

ROUNDING = 8 * 2**20
"""What the allocator may round up to."""
WORKSPACE = 40 * 2**20
"""What cuBLASLt may take beside its operands."""
WIDTHS = [(1536, 8960), (3072, 14336), (5120, 13824), (3072, 12288), (2048, 8192)]
"""Wan's, HunyuanVideo's, and that of HunyuanVideo-1.5."""


@pytest.fixture(autouse=True)
def seeded_without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def made(width, inner, dtype):
    module = FeedForward(width, inner_dim=inner, activation_fn="gelu-approximate").to("cuda", dtype).eval()
    return module, module.net[0].proj.weight, module.net[0].proj.bias


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 517, 4096])
@pytest.mark.parametrize(("width", "inner"), WIDTHS)
def test_an_activated_product_is_no_worse_than_stock(width, inner, rows, dtype):
    _, weight, bias = made(width, inner, dtype)
    x = 3 * torch.randn(1, rows, width, device="cuda").to(dtype)
    assert ineligible(x, weight, bias) == ""
    exact = gelu_tanh(x.double() @ weight.double().T + bias.double())
    ours = launch(x, weight, bias)
    assert ours.shape == (1, rows, inner) and ours.is_contiguous() and ours.dtype == dtype
    assert error(ours, exact) <= 1.1 * error(reference(x, weight, bias), exact)


def test_rows_of_a_view_are_the_rows():
    _, weight, bias = made(1536, 8960, torch.bfloat16)
    x = torch.randn(2, 1536, 300, device="cuda").bfloat16().mT
    torch.testing.assert_close(launch(x, weight, bias), launch(x.contiguous(), weight, bias))


def peak(compute):
    """The bytes that it needs at most beside what there was."""
    compute()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compute()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(("width", "inner"), WIDTHS)
def test_a_feed_forward_needs_its_hidden_rows_once(width, inner):
    module, _, _ = made(width, inner, torch.bfloat16)
    technique, rows = ready(FusedGelu()), 16380
    x = torch.randn(1, rows, width, device="cuda").bfloat16()
    hidden, result = 2 * rows * inner, 2 * rows * width
    stock, ours = peak(lambda: module(x)), peak(lambda: technique.feed_forward(module, None, module, x))
    slack = WORKSPACE + ROUNDING
    assert ours <= hidden + result + slack, (stock, ours, hidden)
    assert stock - ours >= hidden - result - slack, (stock, ours, hidden)
    assert technique.counters.seen == {"calls": 2}


@pytest.mark.parametrize("recipe", ["t2v", "ti2v"])
def test_a_session_is_effective_and_keeps_the_manifests_bound(recipe):
    pipe, arguments = models.RECIPES[recipe](torch.bfloat16)
    pipe.to("cuda")
    arguments = {key: value.cuda() if key.endswith("embeds") else value for key, value in arguments.items()}
    arguments["output_type"] = "latent"
    stock = pipe(**models.fresh(arguments)).frames.double()
    with host_of("wf_plugin_fused_wan", "wf_plugin_wan").session(pipe, {"fused_gelu": True}) as session:
        ours = session.pipe(**models.fresh(arguments)).frames
        (claim,) = session.report["effective"].values()
        calls = sum(session.report["steps"]["calls"].values())
    assert claim["state"] == "effective" and not session.report["fallbacks"]
    assert claim["evidence"]["calls"] == calls * len(pipe.transformer.blocks)
    assert error(ours, stock) <= 1e-2
