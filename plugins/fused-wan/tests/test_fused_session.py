"""The kernels' features in a session on the CPU, by facts of another machine: the torch forms, and the report."""

from __future__ import annotations

import pytest
import torch

from support import models
from wf_core import Host
from wf_core.api import Refused

ELSEWHERE = {"device.type": "cuda", "device.sm": 90, "package.triton": "3.6.0"}
REQUEST = {"fused_rope": True, "fused_modulation": True}


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def test_a_machine_without_a_cuda_device_is_refused_with_the_reason(host):
    pipe, _ = models.RECIPES["t2v"](torch.float32)
    with pytest.raises(
        Refused, match="WF-U010 the kernels are written in Triton for CUDA devices, this is cpu"
    ):
        host.session(pipe, {"fused_rope": True})


def test_the_torch_forms_compute_the_model_and_are_not_called_effective(host):
    pipe, arguments = models.RECIPES["ti2v"](torch.float32)
    stock = torch.as_tensor(pipe(**models.fresh(arguments)).frames)
    with host.session(pipe, REQUEST, facts=ELSEWHERE) as session:
        ours = torch.as_tensor(session.pipe(**models.fresh(arguments)).frames)
        report = session.report["effective"]
    assert (ours - stock).norm() <= 1e-5 * stock.norm()
    assert {name: claim["state"] for name, claim in report.items()} == {
        "fused-rope": "inert",
        "fused-modulation": "inert",
    }
    blocks, calls = 2, report["fused-modulation"]["evidence"]["deduplicated_calls"]
    assert report["fused-modulation"]["evidence"]["reference_calls"] == 6 * blocks * calls
    assert report["fused-rope"]["evidence"]["reference_calls"] == 2 * blocks * calls
