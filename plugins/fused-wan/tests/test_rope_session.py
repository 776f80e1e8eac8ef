"""``fused-rope`` in sessions on HunyuanVideo and Cosmos, on the CPU, by facts of another machine: the torch form, which
keeps every rounding of these families' code, changes no bit.
"""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from support import models
from wf_core.testing import host_of

ELSEWHERE = {"device.type": "cuda", "device.sm": 90, "package.triton": "3.6.0"}
REQUEST = {"fused_rope": True}
SITES = {"cosmos": 2 * 2, "hunyuan": 4 * 2}
"""Calls of the seam in one forward of the trial models: self- and cross-attentions; image and text tokens."""


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def opened(family, model):
    return host_of("wf_plugin_fused_wan", f"wf_plugin_{family}").session(model, REQUEST, facts=ELSEWHERE)


def evidence(session):
    (claim,) = session.report["effective"].values()
    assert not session.report["fallbacks"]
    return claim["evidence"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", sorted(SITES))
def test_a_clip_is_bit_for_bit_stock(family, dtype):
    """Two steps, two branches."""
    bench = import_module(f"wf_plugin_{family}.trial").bench()
    pipe = models.to(bench.pipeline(), dtype)
    call = models.cast({**bench.call, **bench.latent, "num_inference_steps": 2}, dtype)
    stock = pipe(**call, generator=torch.Generator().manual_seed(0)).frames
    with opened(family, pipe) as session:
        ours = session.pipe(**call, generator=torch.Generator().manual_seed(0)).frames
        found = evidence(session)
    assert torch.equal(ours, stock)
    assert stock.std() > 0
    assert found == {
        "reference_calls": SITES[family] * 2 * 2,
        "precision": "fp32",
        "not_by_kernel": ["Triton kernels run on CUDA devices, and this call is on cpu"],
    }


def hunyuan15():
    """A model of two streams in every block, and the arguments of one call."""
    model = models.hy15()
    torch.manual_seed(1)
    return model, {
        "hidden_states": torch.randn(1, 9, 2, 2, 3),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 8, 16),
        "encoder_attention_mask": torch.ones(1, 8),
        "encoder_hidden_states_2": torch.randn(1, 4, 12),
        "encoder_attention_mask_2": torch.ones(1, 4),
        "image_embeds": torch.zeros(1, 3, 6),
        "return_dict": False,
    }


def test_compiled_blocks_call_the_operator_and_sessions_share_their_graph():
    model, arguments = hunyuan15()
    stock = model(**arguments)[0]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    for compiles in (False, True, True):
        with opened("hunyuan", model) as session:
            for block in session.model.transformer_blocks if compiles else ():
                block.compile(backend=counter, fullgraph=True)
            with session.run(num_inference_steps=1):
                out = session.model(**arguments)[0]
            assert torch.equal(out, stock)
            assert evidence(session)["reference_calls"] == 2 * 2
    torch._dynamo.reset()
    assert counter.frame_count == 1
