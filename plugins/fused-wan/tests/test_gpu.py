"""The kernels on a CUDA device: error against float64 beside the stock expression's, and equality where promised."""

from __future__ import annotations

from importlib import import_module

import pytest
import stock_rope
import torch
from torch.nn import functional as F

from support import models
from wf_core import Host
from wf_plugin_fused_wan import gate, gated_residual, norm_modulate, norm_rope
from wf_plugin_fused_wan.norm_rope import Form
from wf_plugin_fused_wan.rope import FusedRope

pytestmark = pytest.mark.gpu

WIDTHS = [1536, 3072, 5120]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOKENS, HEAD, EPS = 523, 128, 1e-6


@pytest.fixture(autouse=True)
def _device():
    torch.manual_seed(0)
    assert gate.why_not(torch.device("cuda", torch.cuda.current_device())) == ""
    with torch.no_grad():
        yield


@pytest.fixture
def _on_cuda():
    with torch.device("cuda"):
        yield


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


def stock_rotation(x, weight, cos, sin):
    x = F.rms_norm(x, x.shape[-1:], weight, EPS).unflatten(2, (-1, HEAD))
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    out = torch.empty_like(x)
    out[..., 0::2] = first * cos[..., 0::2] - second * sin[..., 1::2]
    out[..., 1::2] = first * sin[..., 1::2] + second * cos[..., 0::2]
    return out


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_is_no_worse_than_stock(width, dtype):
    x = torch.randn(2, TOKENS, 3 * width).to(dtype)[..., width : 2 * width] + 1
    scale, shift = torch.randn(2, 6, width).chunk(6, dim=1)[:2]
    ours = norm_modulate.launch(x, None, None, scale, shift, None, EPS)
    exact = F.layer_norm(x.double(), (width,), None, None, EPS) * (1 + scale.double()) + shift.double()
    stock = (F.layer_norm(x.float(), (width,), None, None, EPS) * (1 + scale) + shift).type_as(x)
    assert error(ours, exact) <= 1.1 * error(stock, exact)

    weight, bias = torch.randn(width), torch.randn(width)
    ours = norm_modulate.launch(x, weight, bias, None, None, None, EPS)
    exact = F.layer_norm(x.double(), (width,), weight.double(), bias.double(), EPS)
    assert error(ours, exact) <= 1.1 * error(
        F.layer_norm(x.float(), (width,), weight, bias, EPS).to(dtype), exact
    )


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_by_index_are_the_dense_rows(width, dtype):
    x = torch.randn(2, TOKENS, width).to(dtype)
    few, index = torch.randn(2, 2, 6, width), torch.randint(0, 2, (2, TOKENS))
    dense = torch.stack([rows[at] for rows, at in zip(few, index, strict=True)])
    by_index = norm_modulate.launch(x, None, None, few[:, :, 0], few[:, :, 1], index, EPS)
    assert torch.equal(
        by_index, norm_modulate.launch(x, None, None, dense[:, :, 0], dense[:, :, 1], None, EPS)
    )
    gated = gated_residual.launch(x, x * 3, few[:, :, 2], index)
    assert torch.equal(gated, gated_residual.reference(x, x * 3, dense[:, :, 2], None))


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [*WIDTHS, 96, 1000])
def test_a_gated_residual_is_bit_for_bit_stock(width, dtype):
    x, out = (torch.randn(2, TOKENS, width).to(dtype) for _ in range(2))
    gate_rows = torch.randn(2, 6, width).chunk(6, dim=1)[2]
    assert torch.equal(
        gated_residual.launch(x, out, gate_rows, None), (x.float() + out * gate_rows).type_as(x)
    )
    assert torch.equal(gated_residual.launch(x, out, None, None), x + out)


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_rotation_is_no_worse_than_stock(width, dtype, precision):
    packed = torch.randn(2, TOKENS, 3 * width).to(dtype)
    query, key = packed[..., :width], packed[..., width : 2 * width]
    weight = torch.randn(width).to(dtype)
    angles = (torch.rand(1, TOKENS, 1, HEAD // 2) * 50).repeat_interleave(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    form = Form(width // HEAD, (EPS, EPS), double=precision == "fp64")
    args = (query, key, weight, weight)
    ours = norm_rope.launch(*args, cos, sin, form)
    for x, found in zip((query, key), ours, strict=True):
        exact = stock_rotation(x.double(), weight.double(), cos.double(), sin.double())
        stock = stock_rotation(x, weight, cos, sin)
        assert error(found, exact) <= 1.1 * error(stock, exact)
    short = norm_rope.launch(query, key[:, :77], weight, weight, None, None, form)
    exact = F.rms_norm(key[:, :77].double(), (width,), weight.double(), EPS).unflatten(2, (-1, HEAD))
    assert error(short[1], exact) <= 1.1 * error(
        F.rms_norm(key[:, :77], (width,), weight, EPS).view_as(exact), exact
    )


@pytest.mark.usefixtures("_on_cuda")
def test_halves_per_head_and_padding_agree_with_the_reference():
    query, key = (torch.randn(2, 30, 24 * 96) for _ in range(2))
    angles = (torch.rand(64, 48) * 50).repeat(1, 2)
    weight = torch.randn(96)
    form = Form(24, (EPS, EPS), per_head=True, pairing="halves", offset=16, valid=40)
    args = (query, key, weight, weight, angles.cos(), angles.sin(), form)
    for found, expected in zip(norm_rope.launch(*args), norm_rope.reference(*args), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "heads"), [("hunyuan", 24), ("cosmos", 16)])
def test_a_rotation_by_head_is_no_worse_than_stock(family, heads, dtype, precision):
    """Of image tokens beside text tokens, and the norm of either alone."""
    joint = torch.randn(2, TOKENS + 77, 3 * heads * HEAD, device="cuda").to(dtype).chunk(3, dim=-1)
    norms = stock_rope.norms(HEAD, dtype, device="cuda")
    tables = stock_rope.tables(family, TOKENS, HEAD, device="cuda")
    image, text = ([x[:, part] for x in joint[:2]] for part in (slice(0, TOKENS), slice(TOKENS, None)))
    for pair, at in ((image, tables), (text, None), ((image[0], text[1]), None)):
        weights = [norm.weight for norm in norms]
        args = FusedRope(family, precision).arguments(*pair, *weights, (EPS, EPS), heads, at)
        assert norm_rope.ineligible(*args) == ""
        ours = norm_rope.launch(*args)
        stock = stock_rope.norm_and_rotate(family, *pair, norms, heads, at)
        exact = stock_rope.exactly(family, *pair, norms, heads, at)
        for found, theirs, right in zip(ours, stock, exact, strict=True):
            assert error(found, right) <= 1.1 * error(theirs, right)


BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""The manifest's of fused-rope, which fused-modulation keeps as well on models of Wan."""


@pytest.fixture(scope="module")
def host():
    return Host.discover()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", ["t2v", "ti2v"])
def test_a_session_is_effective_and_keeps_the_manifests_bound(host, recipe, dtype):
    pipe, arguments = models.RECIPES[recipe](dtype)
    pipe.to("cuda")
    arguments = {key: value.cuda() if key.endswith("embeds") else value for key, value in arguments.items()}
    arguments["output_type"] = "latent"
    stock = pipe(**models.fresh(arguments)).frames.double()
    for request in ({"fused_rope": True}, {"fused_modulation": True}):
        with host.session(pipe, request, verify_contents=True) as session:
            ours = session.pipe(**models.fresh(arguments)).frames
            (claim,) = session.report["effective"].values()
        assert claim["state"] == "effective", claim
        assert "reference_calls" not in claim["evidence"]
        assert ("deduplicated_calls" in claim["evidence"]) == (
            "fused_modulation" in request and recipe == "ti2v"
        )
        assert error(ours, stock) <= BOUNDS[dtype], (request, error(ours, stock))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["cosmos", "hunyuan"])
def test_a_session_of_another_family_is_effective_and_keeps_the_manifests_bound(host, family, dtype):
    bench = import_module(f"wf_plugin_{family}.trial").bench()
    pipe = models.to(bench.pipeline(), dtype).to("cuda")
    call = models.cast({**bench.call, **bench.latent}, dtype)
    call = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in call.items()}
    stock = pipe(**call, generator=torch.Generator().manual_seed(0)).frames.double()
    with host.session(pipe, {"fused_rope": True}) as session:
        ours = session.pipe(**call, generator=torch.Generator().manual_seed(0)).frames
        (claim,) = session.report["effective"].values()
        assert not session.report["fallbacks"]
    assert claim["state"] == "effective", claim
    assert "reference_calls" not in claim["evidence"]
    assert error(ours, stock) <= BOUNDS[dtype], error(ours, stock)


def test_compiled_blocks_call_the_operators(host):
    pipe, arguments = models.RECIPES["t2v"](torch.bfloat16)
    pipe.to("cuda")
    arguments = {key: value.cuda() if key.endswith("embeds") else value for key, value in arguments.items()}
    arguments["output_type"] = "latent"
    with host.session(pipe, {"fused_rope": True, "fused_modulation": True}) as session:
        eager = session.pipe(**models.fresh(arguments)).frames.double()
        counted = {name: claim["evidence"]["calls"] for name, claim in session.report["effective"].items()}
        session.pipe.transformer.compile_repeated_blocks(fullgraph=True)
        compiled = session.pipe(**models.fresh(arguments)).frames
        again = {name: claim["evidence"]["calls"] for name, claim in session.report["effective"].items()}
    assert error(compiled, eager) <= BOUNDS[torch.bfloat16]
    assert counted == again
