"""Calls that a kernel cannot serve are refused with a reason; nothing runs instead unless the session asked for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from wf_core.api import Ineligible
from wf_lib_attention.call import Call
from wf_lib_attention.machine import Machine
from wf_plugin_attention_sdpa import flex, operators

CUDA = torch.device("cuda", 0)
SHAPE = (1, 1024, 8, 128)
CALL = Call(SHAPE, SHAPE, SHAPE, torch.bfloat16, CUDA, strides=((1, 1, 1, 1),) * 3)
HOPPER, AMPERE, TURING = Machine((9, 0), 91501), Machine((8, 6), 91501), Machine((7, 5), 91501)


def shaped(call: Call, **sizes: int) -> Call:
    """``call`` with other sizes: b, lq, lk, h, d."""
    b, lq, h, d = (sizes.get(name, old) for name, old in zip(("b", "lq", "h", "d"), call.query, strict=True))
    key = (b, sizes.get("lk", lq), sizes.get("hk", h), d)
    return replace(call, query=(b, lq, h, d), key=key, value=key)


@pytest.mark.parametrize(
    ("operator", "call", "machine", "says"),
    [
        (operators.CUDNN, replace(CALL, dtype=torch.float32), HOPPER, "float32"),
        (operators.CUDNN, CALL, TURING, "7.5"),
        (operators.CUDNN, shaped(CALL, d=192), HOPPER, "up to 128"),
        (operators.CUDNN, shaped(CALL, d=192), Machine((8, 6), 92300), "up to 128"),
        (operators.CUDNN, shaped(CALL, d=264), Machine((9, 0), 92300), "up to 256"),
        (operators.CUDNN, shaped(CALL, lk=1), HOPPER, "single key"),
        (operators.CUDNN, shaped(CALL, b=65536), HOPPER, "65535"),
        (operators.CUDNN, shaped(CALL, lq=1000, lk=1024), Machine((9, 0), 91002), "multiple of 128"),
        (operators.CUDNN, replace(CALL, deterministic=True), HOPPER, "deterministic"),
        (operators.CUDNN, replace(CALL, grad=True), HOPPER, "no_grad"),
        (operators.EFFICIENT, replace(CALL, dtype=torch.float64), HOPPER, "float64"),
        (operators.EFFICIENT, CALL, TURING, "8.0"),
        (operators.EFFICIENT, replace(CALL, grad=True), HOPPER, "no_grad"),
        (operators.FLASH, replace(CALL, dtype=torch.float32), HOPPER, "float32"),
        (operators.FLASH, CALL, TURING, "7.5"),
        (operators.FLASH, shaped(CALL, d=264), HOPPER, "264"),
        (operators.FLASH, replace(CALL, mask=(1, 1, 1, 1024)), HOPPER, "no mask"),
        (operators.FLASH, replace(CALL, grad=True), HOPPER, "no_grad"),
        (operators.CPU_FLASH, replace(CALL, dtype=torch.int8), Machine(), "int8"),
        (operators.MATH, shaped(CALL, lq=27280, h=24), Machine(), "71443046400"),
    ],
)
def test_an_operator_says_why_not(operator, call, machine, says):
    assert says in operator.why_not(call, machine)


@pytest.mark.parametrize(
    ("operator", "call", "machine"),
    [
        (operators.CUDNN, CALL, HOPPER),
        (operators.CUDNN, shaped(CALL, lq=1000), HOPPER),
        (operators.CUDNN, shaped(CALL, d=192), Machine((9, 0), 92300)),
        (operators.CUDNN, shaped(CALL, lq=1024, lk=512), Machine((9, 0), 91002)),
        (operators.CUDNN, replace(CALL, mask=(1, 1, 1, 1024)), HOPPER),
        (operators.EFFICIENT, shaped(CALL, d=264), HOPPER),
        (operators.EFFICIENT, replace(CALL, dtype=torch.float16), TURING),
        (operators.EFFICIENT, replace(CALL, dtype=torch.float32, mask=(1024, 1024)), AMPERE),
        (operators.FLASH, shaped(CALL, d=256), AMPERE),
        (operators.MATH, CALL, Machine()),
    ],
)
def test_an_operator_takes_what_it_can(operator, call, machine):
    assert operator.why_not(call, machine) == ""


@pytest.mark.parametrize(
    ("call", "machine", "says"),
    [
        (CALL, TURING, "8.0"),
        (shaped(CALL, d=12), HOPPER, "16 or more"),
        (replace(CALL, dtype=torch.float64), HOPPER, "float64"),
        (replace(CALL, device=torch.device("meta")), Machine(), "meta"),
        (shaped(replace(CALL, device=torch.device("cpu")), lq=27280, h=24), Machine(), "71443046400"),
        (CALL, HOPPER, ""),
    ],
)
def test_flex_says_why_not(call, machine, says):
    reason = flex.why_not(call, machine)
    assert says in reason
    assert bool(says) == bool(reason)


@pytest.mark.parametrize("backend", ["cudnn", "efficient"])
def test_cuda_backends_refuse_the_cpu(backend, provider, inputs):
    with pytest.raises(Ineligible, match=f"{backend} runs on cuda devices only, this call is on cpu"):
        provider(backend).attend(*inputs(), None)


def test_math_refuses_to_write_out_huge_scores(provider):
    """Views without memory of their own: the refusal must come before anything is allocated."""
    x = torch.zeros(1).expand(1, 27280, 24, 128)
    with pytest.raises(Ineligible, match="would allocate 71443046400 bytes"):
        provider("math").attend(x, x, x, None)


def test_sdpa_refuses_where_torch_would_choose_to_write_them_out(provider, monkeypatch):
    x = torch.zeros(1).expand(1, 27280, 24, 128)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *args, **keywords: 0)
    with pytest.raises(Ineligible, match="torch's choice, the math kernel, would allocate 71443046400 bytes"):
        provider("sdpa").attend(x, x, x, None)


@pytest.mark.parametrize("backend", ["math", "torch-flash", "flex"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q, k, v: (q, k.half(), v, None), "float32, float16, float32"),
        (lambda q, k, v: (q[0], k, v, None), r"must be \[B, L, H, D\]"),
        (lambda q, k, v: (q, k[:, :0], v[:, :0], None), "empty axis"),
        (lambda q, k, v: (q, k, v[:, :5], None), "differ in shape"),
        (lambda q, k, v: (q, k[..., :32], v[..., :32], None), "batch or head size"),
        (lambda q, k, v: (q, k[:, :, :2], v[:, :, :2], None), "3 query heads cannot share 2 key heads"),
        (lambda q, k, v: (q, k, v, torch.zeros(33, 17)), "must be boolean"),
        (lambda q, k, v: (q, k, v, torch.ones(2, 17, dtype=torch.bool)), "does not broadcast"),
        (lambda q, k, v: (q, k, v, torch.ones(1, 2, 1, 33, 17, dtype=torch.bool)), "does not broadcast"),
        (lambda q, k, v: (q, k, v, torch.ones(1, dtype=torch.bool, device="meta")), "cpu, meta"),
    ],
)
def test_calls_that_do_not_fit_together(backend, change, says, provider, inputs):
    with pytest.raises(Ineligible, match=says):
        provider(backend).attend(*change(*inputs()))


def test_a_refusal_is_remembered_and_repeated(provider, inputs):
    refusing = provider("cudnn")
    for _ in range(2):
        with pytest.raises(Ineligible, match="cuda"):
            refusing.attend(*inputs(), None)
    assert len(refusing._recipes) == 1
    assert refusing.evidence() == {"operators": {}, "around": []}


def test_a_refused_call_is_an_attempt_and_no_success(provider, inputs):
    """Whether something else runs in its place is the host's to decide: the provider itself never falls back."""
    refusing = provider("efficient")
    q, k, v = inputs()
    with pytest.raises(Ineligible, match="efficient runs on cuda devices only, this call is on cpu"):
        refusing.handlers()["attention"](lambda *args: pytest.fail("ran in its place"), None, q, k, v, None)
    assert refusing.counters.counts == {"attempts": 1}
    assert refusing.counters.reasons == []
