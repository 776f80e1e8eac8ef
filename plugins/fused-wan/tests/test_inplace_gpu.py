"""What the residuals of a block need on a CUDA device, beside the stock code."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fused_by_hand import ready

from wf_core.api import Site
from wf_plugin_fused_wan import inplace
from wf_plugin_fused_wan.inplace import SCRATCH, InplaceResidual
from wf_plugin_fused_wan.modulation import FusedModulation

pytestmark = pytest.mark.gpu

L, D = 32760, 5120
ROUNDING = 8 * 2**20
"""What the allocator may round up to."""
SELF, CROSS, FFN = (Site("gated_residual", role=role) for role in ("self", "cross", "ffn"))


@pytest.fixture(autouse=True)
def without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def stock(x, out, gate):
    return x + out if gate is None else (x.float() + out * gate).type_as(x)


def residuals(x, out, gate, add):
    """The residuals of one block; every branch gives the same."""
    return add(FFN, add(CROSS, add(SELF, x, out, gate), out, None), out, gate)


def peak(compute):
    """What it gives, and the bytes that it needs at most beside what there was."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = compute()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("gate_rows", [1, L])
def test_the_residuals_of_a_block_need_no_whole_tensor_in_fp32(gate_rows):
    x, out = (torch.randn(1, L, D, device="cuda").bfloat16() for _ in range(2))
    gate = torch.randn(1, gate_rows, D, device="cuda")
    technique = ready(InplaceResidual())
    handler = technique.handlers()["gated_residual"]
    theirs, most = peak(lambda: residuals(x, out, gate, lambda site, *args: stock(*args)))
    ours, least = peak(lambda: residuals(x, out, gate, lambda site, *args: handler(stock, site, *args)))
    assert torch.equal(ours, theirs)
    fp32 = 4 * L * D
    assert least <= 2 * L * D + SCRATCH + ROUNDING, f"{least} bytes for the result and the pieces"
    assert most - least >= 3 * fp32 - SCRATCH - ROUNDING, f"{most} bytes by the stock code, {least} in place"


@pytest.mark.parametrize("gate_rows", [1, L])
def test_the_fused_kernel_needs_one_result_for_the_three(monkeypatch, gate_rows):
    x, out = (torch.randn(1, L, D, device="cuda").bfloat16() for _ in range(2))
    gate = torch.randn(1, gate_rows, D, device="cuda")
    technique, fused = ready(InplaceResidual()), ready(FusedModulation())
    monkeypatch.setattr(inplace, "fused_modulation", lambda: fused)
    handler = technique.handlers()["gated_residual"]

    def add(site, *args):
        return handler(partial(fused.gated_residual, stock, site), site, *args)

    theirs = residuals(x, out, gate, lambda site, *args: stock(*args))
    residuals(x, out, gate, add)  # compiles
    ours, least = peak(lambda: residuals(x, out, gate, add))
    assert torch.equal(ours, theirs)
    assert fused.counters.seen["calls"] == 6 and technique.counters.seen["inplace_adds"] == 4
    assert least <= 2 * L * D + ROUNDING, f"{least} bytes for the result"


@pytest.mark.parametrize(
    ("dim", "ffn", "saved"), [(5120, 13824, 4 * L * 5120), (1536, 8960, 0)], ids=["14B", "1.3B"]
)
def test_a_block_of_published_width_needs_less(dim, ffn, saved):
    """At 14B by more than one copy in fp32. The feed-forward of 1.3B, 5.8 times as wide, needs more than a residual."""
    from diffusers import WanTransformer3DModel

    from wf_core.testing import host_of, seeded

    model = seeded(
        WanTransformer3DModel,
        num_attention_heads=dim // 128,
        attention_head_dim=128,
        ffn_dim=ffn,
        num_layers=1,
        text_dim=64,
        in_channels=16,
        out_channels=16,
        cross_attn_norm=True,
    ).to("cuda", torch.bfloat16)
    inputs = {
        "hidden_states": torch.randn(1, 16, 21, 60, 104, device="cuda").bfloat16(),
        "timestep": torch.tensor([500], device="cuda"),
        "encoder_hidden_states": torch.randn(1, 512, 64, device="cuda").bfloat16(),
        "return_dict": False,
    }
    theirs, most = peak(lambda: model(**inputs)[0])
    with host_of("wf_plugin_fused_wan", "wf_plugin_wan").session(
        model, {"inplace_residual": True}
    ) as session:
        with session.run(num_inference_steps=1):
            ours, least = peak(lambda: session.model(**inputs)[0])
    assert torch.equal(ours, theirs)
    assert most - least > saved, f"{most} bytes by the stock code, {least} in place"
