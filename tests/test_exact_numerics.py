"""The exact stack is no further from a float64 forward than stock diffusers: what its kernels compute, on the CPU.

The facts are those of another machine, so that the host opens the session; the torch forms stand in for the kernels.
tests/gpu/test_exact.py has the kernels themselves.
"""

from __future__ import annotations

import pytest
import torch

from support import models, wan64
from wf_core.testing import host_of
from wf_plugin_fused_wan import feed_forward

ELSEWHERE = {"device.type": "cuda", "device.sm": 90, "package.triton": "3.6.0", "model.dtype": "bfloat16"}
EXACT = {"fused_rope": True, "fused_modulation": True, "fused_gelu": True}
MARGIN = 1.1


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def activated(monkeypatch):
    """What the epilogue of the product computes: bias and GELU before the one rounding. Counts its calls."""
    calls = []

    def launch(x, weight, bias):
        calls.append(x.shape)
        return feed_forward.reference(x.float(), weight.float(), bias.float()).to(x.dtype)

    monkeypatch.setattr(feed_forward, "launch", launch)
    monkeypatch.setattr(feed_forward, "ineligible", lambda x, weight, bias: "")
    return calls


def wan(dtype, blocks=3):
    """A tiny model with everything at random, norms and output layer included, in the dtypes of ``from_pretrained``."""
    torch.manual_seed(0)
    model = models.w(num_layers=blocks)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.startswith("proj_out"):
            parameter.data.normal_(float(parameter.ndim == 1 and name.endswith("weight")), 0.1)
    keep = set(model._keep_in_fp32_modules)
    for name, parameter in model.named_parameters():
        if not keep & set(name.split(".")):
            parameter.data = parameter.data.to(dtype)
    return model


def arguments(dtype, per_token):
    """For 192 tokens; with ``per_token`` those of the first frame are at time 0, as TI2V has with an image."""
    inputs = models.w_inputs(frames=3, height=16, width=16)
    tokens = 3 * 8 * 8
    if per_token:
        inputs["timestep"] = 500.0 * (torch.arange(tokens) >= tokens // 3).float().unsqueeze(0)
    return {
        name: x.to(dtype) if name != "timestep" and name != "return_dict" else x for name, x in inputs.items()
    }


@pytest.mark.parametrize("per_token", [False, True], ids=["one timestep", "one per token"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_further_from_float64_than_stock(activated, dtype, per_token):
    model, inputs = wan(dtype), arguments(dtype, per_token)
    *_, exact = wan64.states(
        model, inputs["hidden_states"], inputs["timestep"], inputs["encoder_hidden_states"]
    )
    stock = wan64.relative(model(**inputs)[0], exact)
    with host_of("wf_plugin_fused_wan", "wf_plugin_wan").session(model, EXACT, facts=ELSEWHERE) as session:
        with session.run(num_inference_steps=1):
            ours = wan64.relative(session.model(**inputs)[0], exact)
        evidence = {name: claim["evidence"] for name, claim in session.report["effective"].items()}
    assert 0 < ours <= MARGIN * stock, (ours, stock)
    assert stock < {torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype], "the reference itself is off"
    blocks = len(model.blocks)
    assert len(activated) == evidence["fused-gelu"]["calls"] == blocks
    assert evidence["fused-rope"]["reference_calls"] == 2 * blocks
    assert evidence["fused-modulation"]["reference_calls"] == 6 * blocks
    assert evidence["fused-modulation"].get("deduplicated_calls", 0) == per_token
