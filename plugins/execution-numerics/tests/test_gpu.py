"""On a card: a policy's kernel runs, TF32 changes a product and is put back, and a cast is a loaded model."""

from __future__ import annotations

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch.profiler import ProfilerActivity, profile

from wf_core.api import seeded

from .conftest import CONFIG, Spy, inputs

pytestmark = pytest.mark.gpu
PREFIX = "aten::_scaled_dot_product_"
OPERATORS = {
    "flash": "flash_attention",
    "cudnn": "cudnn_attention",
    "efficient": "efficient_attention",
    "math": "attention_math",
}


@pytest.fixture
def on_cuda():
    """Heads of 16, which every kernel takes; float32."""
    return seeded(WanTransformer3DModel, **{**CONFIG, "attention_head_dim": 16}).cuda()


def wide(dtype=torch.bfloat16):
    """128 tokens and 128 of text: whole tiles of every kernel."""
    generator = torch.Generator().manual_seed(3)
    latents, text = (torch.randn(shape, generator=generator) for shape in ((1, 16, 2, 16, 16), (1, 128, 16)))
    return {
        **inputs(dtype, "cuda"),
        "hidden_states": latents.to("cuda", dtype),
        "encoder_hidden_states": text.to("cuda", dtype),
    }


def computed(host, model, request, call):
    """The output of one call, the report, and the attention operators that ran in it."""
    with host.session(model, request) as session:
        with (
            torch.no_grad(),
            session.run(),
            profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen,
        ):
            out = session.model(**call)[0]
        report = session.report
    ran = {event.key for event in seen.key_averages() if event.key.startswith(PREFIX)}
    return out, report, ran


def relative(out, reference):
    return float((out.double() - reference.double()).norm() / reference.double().norm())


@pytest.mark.parametrize("policy", OPERATORS)
def test_the_kernel_that_a_policy_names_runs_and_no_other(policy, host, on_cuda):
    base = on_cuda.to(torch.bfloat16)
    plain, _, _ = computed(host, base, {}, wide())
    out, report, ran = computed(host, base, {"attention_policy": policy}, wide())
    assert ran == {PREFIX + OPERATORS[policy]}
    assert report["effective"]["attention-policy"]["state"] == "effective"
    assert relative(out, plain) <= 1e-2


def test_auto_lets_torch_choose_again(host, on_cuda):
    base = on_cuda.to(torch.bfloat16)
    _, _, chosen = computed(host, base, {}, wide())
    torch.backends.cuda.enable_math_sdp(False)
    try:
        _, _, ran = computed(host, base, {"attention_policy": "auto"}, wide())
        assert not torch.backends.cuda.math_sdp_enabled()
    finally:
        torch.backends.cuda.enable_math_sdp(True)
    assert ran == chosen


@pytest.mark.parametrize(
    ("request_", "low", "high"),
    [
        ({"enable_tf32": True}, 1e-4, 1e-3),
        ({"enable_tf32": False}, 0, 1e-6),
        ({"matmul_precision": "high"}, 1e-4, 1e-3),
        ({"matmul_precision": "medium"}, 1e-4, 1e-2),
        ({"matmul_precision": "highest"}, 0, 1e-6),
    ],
    ids=str,
)
def test_the_error_of_a_float32_product(request_, low, high, host, on_cuda):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1024, 1024, generator=generator).cuda() for _ in range(2))
    exact = a.double() @ b.double()
    before = a @ b
    spy = Spy(lambda: a @ b)
    with host.session(on_cuda, request_, extra={"spy": spy}) as session, torch.no_grad(), session.run():
        session.model(**wide(torch.float32))
    assert low <= relative(spy.found[0], exact) <= high
    assert torch.equal(a @ b, before), "put back"


@pytest.mark.parametrize(("enabled", "low", "high"), [(True, 1e-4, 1e-3), (False, 0, 1e-6)])
def test_the_error_of_a_float32_convolution(enabled, low, high, host, on_cuda):
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(1, 64, 8, 32, 32, generator=generator),
        torch.randn(64, 64, 3, 3, 3, generator=generator),
    )
    x, weight = x.cuda(), weight.cuda()
    exact = torch.conv3d(x.double(), weight.double())
    spy = Spy(lambda: torch.conv3d(x, weight))
    with host.session(on_cuda, {"enable_tf32": enabled}, extra={"spy": spy}) as session, torch.no_grad():
        with session.run():
            session.model(**wide(torch.float32))
    assert low <= relative(spy.found[0], exact) <= high


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_cast_is_the_model_loaded_in_the_dtype(dtype, host, on_cuda, tmp_path):
    on_cuda.save_pretrained(tmp_path)
    loaded = WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=dtype).eval().cuda()
    with torch.no_grad():
        expected = loaded(**wide(dtype))[0]
    out, report, _ = computed(host, on_cuda, {"torch_dtype": str(dtype).removeprefix("torch.")}, wide(dtype))
    assert torch.equal(out, expected)
    assert report["effective"]["torch-dtype"]["state"] == "effective"


def test_determinism_repeats_and_leaves_cudnn_out(host, on_cuda):
    base = on_cuda.to(torch.bfloat16)
    q = torch.randn(1, 2, 128, 16, device="cuda", dtype=torch.bfloat16)
    spy = Spy(lambda: torch._fused_sdp_choice(q, q, q))
    plain, _, _ = computed(host, base, {}, wide())
    with host.session(base, {"deterministic": True}, extra={"spy": spy}) as session, torch.no_grad():
        with session.run():
            outs = [session.model(**wide())[0] for _ in range(2)]
        assert session.report["effective"]["deterministic"]["state"] == "effective"
    assert torch.equal(*outs)
    assert relative(outs[0], plain) <= 1e-2
    assert set(spy.found) <= {0, 1, 2}, "3 is cuDNN's"


def test_determinism_raises_on_the_card_too(host, on_cuda):
    spy = Spy(lambda: torch.histc(torch.rand(8, device="cuda")))
    with host.session(on_cuda, {"deterministic": True}, extra={"spy": spy}) as session, torch.no_grad():
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"), session.run():
            session.model(**wide(torch.float32))
