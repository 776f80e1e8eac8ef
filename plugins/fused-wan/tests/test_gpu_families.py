"""The kernels at the widths of Cosmos and HunyuanVideo on a CUDA device, beside stock code with a rounding per step."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
import stock_typed
import torch
from fused_by_hand import ready
from torch import nn

from wf_core.api import Site, TokenRows
from wf_core.testing import host_of
from wf_plugin_fused_wan import gate, gated_residual, inplace, norm_modulate
from wf_plugin_fused_wan.inplace import SCRATCH, InplaceResidual
from wf_plugin_fused_wan.modulation import FusedModulation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

COSMOS, HUNYUAN = (84480, 2048), (20000, 3072)
"""Tokens and width: Predict2 2B at 93 frames of 704x1280, and a clip of HunyuanVideo."""
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
EPS, ROUNDING = 1e-6, 8 * 2**20
"""Of the norms; what the allocator may round up to."""


@pytest.fixture(autouse=True)
def _device():
    torch.manual_seed(0)
    assert gate.why_not(torch.device("cuda", torch.cuda.current_device())) == ""
    with torch.no_grad():
        yield
    torch.cuda.empty_cache()


@pytest.fixture
def _on_cuda():
    with torch.device("cuda"):
        yield


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


def rows_of(how, tokens, width, dtype, count):
    """As the blocks have them: slices of what one layer gives for each sample, or for each token (Cosmos, by frame)."""
    made = torch.randn(1, 1 if how == "shared" else tokens, count * width).to(dtype)
    return made.chunk(count, dim=-1)


SIZES = [(COSMOS, "shared"), (COSMOS, "per token"), (HUNYUAN, "shared")]


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize(("size", "how"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_is_no_worse_than_stock(size, how, dtype):
    x = torch.randn(1, *size).to(dtype) + 1
    shift, scale, _ = rows_of(how, *size, dtype, 3)
    norm = nn.LayerNorm(size[1], elementwise_affine=False, eps=EPS)
    ours = norm_modulate.launch(x, None, None, scale, shift, None, EPS)
    stock = stock_typed.norm_modulate(norm, x, scale, shift)
    exact = stock_typed.norm_modulate(norm, x.double(), scale.double(), shift.double())
    assert ours.dtype == dtype and error(ours, exact) <= 1.1 * error(stock, exact)


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize(("size", "how"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_residual_is_no_worse_than_stock(size, how, dtype):
    x, out = (torch.randn(1, *size).to(dtype) for _ in range(2))
    *_, rows = rows_of(how, *size, dtype, 3)
    ours = gated_residual.launch(x, out, rows, None)
    stock = stock_typed.gated_residual(x, out, rows)
    exact = stock_typed.gated_residual(x.double(), out.double(), rows.double())
    assert error(ours, exact) <= 1.1 * error(stock, exact)
    assert torch.equal(ours, stock) == (dtype == torch.float32)
    assert torch.equal(ours, gated_residual.reference(x, out, rows, None))
    assert torch.equal(gated_residual.launch(x, out, rows, None, True), ours) and torch.equal(x, ours)


FRAMES = 24
"""Latent frames of that clip of Cosmos, 3520 tokens each."""


def rows_of_frames(dtype):
    """Shift, scale and gate of each frame, slices as the blocks have them, and the frame of each token."""
    tokens, width = COSMOS
    index = torch.arange(FRAMES).repeat_interleave(tokens // FRAMES).unsqueeze(0)
    return *torch.randn(1, FRAMES, 3 * width).to(dtype).chunk(3, dim=-1), index


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_frames_are_read_as_if_each_token_had_its_own(dtype):
    x, out = (torch.randn(1, *COSMOS).to(dtype) for _ in range(2))
    shift, scale, rows, index = rows_of_frames(dtype)
    wide = [TokenRows(row, index).dense() for row in (shift, scale, rows)]
    ours = norm_modulate.launch(x, None, None, scale, shift, index, EPS)
    assert torch.equal(ours, norm_modulate.launch(x, None, None, wide[1], wide[0], None, EPS))
    assert torch.equal(
        gated_residual.launch(x, out, rows, index), gated_residual.launch(x, out, wide[2], None)
    )


@pytest.mark.usefixtures("_on_cuda")
def test_a_part_of_a_stream_is_served_as_a_view():
    """HunyuanVideo, image to video: the first frame's tokens, and the rest, of two samples."""
    x, out = (torch.randn(2, 4000, 3072).bfloat16() for _ in range(2))
    rows = torch.randn(2, 1, 3072).bfloat16()
    for part in (slice(None, 900), slice(900, None)):
        views = x[:, part], out[:, part]
        found = gated_residual.launch(*views, rows, None)
        assert found.is_contiguous() and torch.equal(found, gated_residual.reference(*views, rows, None))
        normed = norm_modulate.launch(views[0], None, None, rows, rows, None, EPS)
        whole = norm_modulate.launch(views[0].contiguous(), None, None, rows, rows, None, EPS)
        assert torch.equal(normed, whole)


# --- memory -----------------------------------------------------------------------------------------------------------

BLOCK = "transformer_blocks.0"
SITES = [Site("gated_residual", "transformer", f"{BLOCK}.{name}") for name in ("attn1", "attn2", "ff")]


def peak(compute):
    """What it gives, and the bytes that it needs at most beside what there was."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = compute()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def residuals(x, out, rows, add):
    """The residuals of one block; every branch gives the same."""
    for site in SITES:
        x = add(site, x, out, rows)
    return x


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize("how", ["shared", "per token"])
def test_the_residuals_of_a_cosmos_block_need_one_result_and_a_piece(how):
    x, out = (torch.randn(1, *COSMOS).bfloat16() for _ in range(2))
    *_, rows = rows_of(how, *COSMOS, torch.bfloat16, 3)
    handler = ready(InplaceResidual(family="cosmos")).handlers()["gated_residual"]
    theirs, most = peak(
        lambda: residuals(x, out, rows, lambda site, *args: stock_typed.gated_residual(*args))
    )
    ours, least = peak(lambda: residuals(x, out, rows, partial(handler, stock_typed.gated_residual)))
    assert torch.equal(ours, theirs)
    assert least <= x.nbytes + SCRATCH + ROUNDING, f"{least} bytes for the result and the pieces"
    assert most >= 3 * x.nbytes, f"{most} bytes by the stock code: what came before, a product and a sum"


@pytest.mark.usefixtures("_on_cuda")
def test_the_fused_kernel_writes_over_the_block_s_own(monkeypatch):
    x, out = (torch.randn(1, *COSMOS).bfloat16() for _ in range(2))
    *_, rows = rows_of("shared", *COSMOS, torch.bfloat16, 3)
    technique, fused = ready(InplaceResidual(family="cosmos")), ready(FusedModulation("cosmos"))
    monkeypatch.setattr(inplace, "fused_modulation", lambda: fused)
    handler = technique.handlers()["gated_residual"]

    def add(site, *args):
        return handler(partial(fused.gated_residual, None, site), site, *args)

    apart = residuals(x, out, rows, lambda site, *args: fused.gated_residual(None, site, *args))
    residuals(x, out, rows, add)  # compiles
    ours, least = peak(lambda: residuals(x, out, rows, add))
    assert torch.equal(ours, apart)
    assert technique.counters.seen["inplace_adds"] == 4
    assert least <= x.nbytes + ROUNDING, f"{least} bytes for the result"


# --- sessions ---------------------------------------------------------------------------------------------------------

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""The manifest's, of fused-modulation."""


def tiny(family, dtype):
    """A pipeline on the device, and what makes its latents."""
    bench = import_module(f"wf_plugin_{family}.trial").bench()
    pipe = bench.pipeline()
    for parameter in pipe.transformer.parameters():
        parameter.data = parameter.data.to(dtype)
    pipe.to("cuda")
    call = {**bench.call, "output_type": "latent"}
    for name, value in call.items():
        if isinstance(value, torch.Tensor):
            call[name] = value.to("cuda", dtype if value.is_floating_point() else None)

    def make(pipe):
        return pipe(**call, generator=torch.Generator().manual_seed(0)).frames.double()

    return pipe, make


def run(family, pipe, make, request):
    """The latents of a session, whose features were all effective, and their evidence."""
    with host_of("wf_plugin_fused_wan", f"wf_plugin_{family}").session(
        pipe, request, verify_contents=True
    ) as session:
        ours = make(session.pipe)
    effective = session.report["effective"]
    assert {claim["state"] for claim in effective.values()} == {"effective"}, effective
    assert not session.report["fallbacks"]
    return ours, {name: claim["evidence"] for name, claim in effective.items()}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("family", ["cosmos", "hunyuan"])
def test_a_fused_session_keeps_the_manifests_bound(family, dtype):
    pipe, make = tiny(family, dtype)
    stock = make(pipe)
    alone, found = run(family, pipe, make, {"fused_modulation": True})
    assert "reference_calls" not in found["fused-modulation"]
    assert ("deduplicated_calls" in found["fused-modulation"]) == (family == "cosmos"), (
        "one row for each frame"
    )
    assert error(alone, stock) <= BOUNDS[dtype], error(alone, stock)
    both, _ = run(family, pipe, make, {"fused_modulation": True, "inplace_residual": True})
    assert torch.equal(alone, both)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("family", "switch"),
    [("cosmos", "inplace_residual"), ("cosmos", "static_cross_kv"), ("hunyuan", "inplace_residual")],
)
def test_an_exact_session_is_stock_bit_for_bit(family, switch, dtype):
    pipe, make = tiny(family, dtype)
    stock = make(pipe)
    assert torch.equal(run(family, pipe, make, {switch: True})[0], stock)


def test_the_gelu_of_a_hunyuan_session_keeps_the_manifests_bound():
    pipe, make = tiny("hunyuan", torch.bfloat16)
    stock = make(pipe)
    ours, _ = run("hunyuan", pipe, make, {"fused_gelu": True})
    assert error(ours, stock) <= 1e-2
