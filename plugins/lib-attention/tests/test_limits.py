"""What a kernel can serve, judged from shapes and numbers alone; the first broken rule speaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from wf_lib_attention.call import Call
from wf_lib_attention.limits import Limits
from wf_lib_attention.machine import Machine

SHAPE = (1, 1024, 8, 128)
CALL = Call(SHAPE, SHAPE, SHAPE, torch.bfloat16, torch.device("cuda", 0), strides=((1, 1, 1, 1),) * 3)
HOPPER, TURING, NONE = Machine((9, 0)), Machine((7, 5)), Machine()
LIMITS = Limits(
    "mine",
    arch=lambda capability: capability >= (8, 0),
    arch_words="8.0 or later",
    head=lambda size, capability: size <= 128 or capability == (10, 0),
    head_words="up to 128",
    least="1.2.3",
    captured=False,
    least_tokens=100,
)


@pytest.mark.parametrize(
    ("change", "machine", "version", "says"),
    [
        ({}, HOPPER, "1.2.2", "needs its package in version 1.2.3 or later, this is 1.2.2"),
        ({"device": torch.device("cpu")}, NONE, "", "CUDA devices only, this call is on cpu"),
        ({}, TURING, "", "compute capability 8.0 or later, this device has 7.5"),
        ({"mixed": "query and key are not alike"}, HOPPER, "", "not alike"),
        ({"value": (1, 1000, 8, 128)}, HOPPER, "", "differ in shape"),
        ({"dtype": torch.float32}, HOPPER, "", "mine takes float16 and bfloat16, this call is float32"),
        (
            {"query": (1, 8, 8, 192), "key": (1, 8, 8, 192), "value": (1, 8, 8, 192)},
            HOPPER,
            "",
            "this call has 192",
        ),
        ({"mask": (1, 1, 1, 1024)}, HOPPER, "", "takes no mask"),
        ({"grad": True}, HOPPER, "", "torch.no_grad()"),
        ({"capturing": True}, HOPPER, "", "CUDA graph"),
        ({"query": (1, 99, 8, 128)}, HOPPER, "", "kept to 100 tokens and more, this call has 99"),
        ({"key": (1, 77, 8, 128), "value": (1, 77, 8, 128)}, HOPPER, "", "this call has 77"),
    ],
)
def test_a_broken_rule_is_a_sentence(change, machine, version, says):
    assert says in LIMITS.why_not(replace(CALL, **change), machine, version)


@pytest.mark.parametrize("version", ["1.2.3", "1.2.3.post1", "1.10", "2", ""])
def test_nothing_broken_is_no_reason(version):
    assert LIMITS.why_not(CALL, HOPPER, version) == ""


def test_head_sizes_may_depend_on_the_device():
    wide = replace(CALL, query=(1, 128, 8, 192), key=(1, 128, 8, 192), value=(1, 128, 8, 192))
    assert LIMITS.why_not(wide, Machine((10, 0))) == ""
    assert "192" in LIMITS.why_not(wide, Machine((10, 3)))


def test_masks_and_captures_are_taken_where_they_are_allowed():
    able = replace(LIMITS, masks=True, captured=True)
    assert able.why_not(replace(CALL, mask=(1, 1, 1, 1024), capturing=True), HOPPER) == ""


def test_the_device_speaks_before_the_dtype():
    assert "7.5" in LIMITS.why_not(replace(CALL, dtype=torch.float32, grad=True), TURING)
