"""Open mode and sessions on a CUDA device: the same bits as stock, in the kernels that are chosen there."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wf_core import Host

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("torchvision"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

SEAMS = (
    "stack",
    "block",
    "time_embedding",
    "branch",
    "norm_modulate",
    "gated_residual",
    "attention",
    "qkv",
    "rope",
    "linear",
)


def on_cuda(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(on_cuda(part) for part in value)
    return value.cuda() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["p1", "p2", "p2.5", "transfer"])
def test_all_seams_together_are_bit_identical(kind: str, dtype: torch.dtype, tiny: SimpleNamespace) -> None:
    # heads of 64: the sizes that the fused attention kernels take
    more = {"img_context_dim_out": 128} if kind == "transfer" else {}
    model = tiny.model(kind, dtype, attention_head_dim=64, num_attention_heads=2, **more)
    model = copy.deepcopy(model).cuda()
    call = {name: on_cuda(value) for name, value in tiny.call(kind, dtype).items()}
    if kind == "transfer":
        call["block_controlnet_hidden_states"] = [torch.randn(1, 12, 128, dtype=dtype).cuda()] * 2
    opened = tiny.open(model, *SEAMS)
    with opened.run():
        assert torch.equal(opened.components["transformer"](**call)[0], model(**call)[0])


@pytest.mark.parametrize("kind", ["p1-video", "p2", "p2.5"])
def test_text_products_are_exact_in_a_session(kind: str, tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe(kind, torch.bfloat16)
    pipe.transformer, pipe.vae = copy.deepcopy(pipe.transformer).cuda(), copy.deepcopy(pipe.vae).cuda()
    given = {name: on_cuda(value) for name, value in tiny.arguments(kind, torch.bfloat16).items()}
    plain = tiny.output(pipe, given)
    with Host.discover().session(pipe, {"static_cross_kv": True}) as session:
        assert torch.equal(tiny.output(session.pipe, given), plain)
        assert session.report["identity"] == "ordinal"
