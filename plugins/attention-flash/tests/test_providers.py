"""The three packages by stand-ins that record how they are called, and compute attention from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from wf_core.api import Ineligible
from wf_lib_attention.call import Call
from wf_lib_attention.machine import Machine
from wf_plugin_attention_flash.providers import PROVIDERS, Flash2, Flash3, Flash4

HOPPER = (9, 0)


def attention(q, k, v, scale):
    return F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), scale=scale, enable_gqa=True
    ).transpose(1, 2)


class Packages:
    """The stand-ins, with the arguments of the real ones. ``calls`` holds what was given, ``lse`` what is returned."""

    def __init__(self, package):
        self.calls, self.tuples = [], False
        package("flash_attn", flash_attn_func=self.second)
        package("flash_attn_interface", flash_attn_func=self.third)
        package("flash_attn.cute", flash_attn_func=self.fourth)

    def second(
        self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0
    ):
        return self.answer("flash2", q, k, v, softmax_scale, causal, dropout_p)

    def third(self, q, k, v, softmax_scale=None, causal=False, qv=None, window_size=(-1, -1), num_splits=1):
        return self.answer("flash3", q, k, v, softmax_scale, causal, qv)

    def fourth(
        self, q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, return_lse=False
    ):
        return self.answer("flash4", q, k, v, softmax_scale, causal, qv, gather_kv_indices)

    def answer(self, name, q, k, v, scale, causal, *others):
        self.calls.append((name, q, k, v, scale))
        assert causal is False
        assert all(other in (None, 0.0) for other in others), "an argument is in a wrong place"
        out = attention(q, k, v, scale)
        return (out, None) if self.tuples else out


@pytest.fixture
def packages(package):
    return Packages(package)


@pytest.mark.parametrize("tuples", [False, True], ids=["plain", "tuple"])
@pytest.mark.parametrize("name", PROVIDERS)
def test_layout_scale_and_result(name, tuples, packages, on, inputs, reference, relative_error):
    on(*HOPPER)
    packages.tuples = tuples
    q, k, v = inputs(size=96)
    provider = PROVIDERS[name]()
    out = provider.attend(q, k, v, None)
    assert relative_error(out, reference(q, k, v)) <= 2e-3
    (called, *given, scale) = packages.calls[0]
    assert called == name
    assert [x.data_ptr() for x in given] == [x.data_ptr() for x in (q, k, v)], "BLHD, as it comes, uncopied"
    assert scale == 96**-0.5
    assert provider.evidence()["operators"] == {f"{provider.module}.flash_attn_func": 1}


@pytest.mark.parametrize("name", PROVIDERS)
def test_key_heads_are_the_packages_to_share(name, packages, on, inputs, reference, relative_error):
    on(*HOPPER)
    q, k, v = inputs(heads=8, key_heads=2)
    assert relative_error(PROVIDERS[name]().attend(q, k, v, None), reference(q, k, v)) <= 2e-3
    assert packages.calls[0][2].shape[2] == 2


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_mask_is_refused_and_never_dropped(name, packages, on, inputs):
    on(*HOPPER)
    with pytest.raises(Ineligible, match=f"{name} takes no mask"):
        PROVIDERS[name]().attend(*inputs(), torch.ones(33, 17, dtype=torch.bool))
    assert packages.calls == []


def test_an_argument_list_without_a_scale_is_refused(package, on, inputs):
    on(*HOPPER)
    package("flash_attn.cute", flash_attn_func=lambda q, k, v, temperature=None: q)
    with pytest.raises(
        Ineligible, match="no argument 'softmax_scale' in this version, only q, k, v, temperature"
    ):
        Flash4().attend(*inputs(), None)


def test_the_package_of_another_generation_is_refused_at_open(package):
    """flash-attn-4 alone puts a ``flash_attn`` on the path that has no ``flash_attn_func``."""
    package("flash_attn")
    with pytest.raises(Ineligible, match=r"flash_attn\.flash_attn_func cannot be imported \(AttributeError"):
        Flash2().prepare({})


def test_a_kernel_that_is_not_in_the_wheel_refuses_the_call_and_no_other_is_made(package, on, inputs):
    on(12, 0)
    calls = []

    def missing(q, k, v, softmax_scale=None, causal=False):
        calls.append(q.shape)
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    package("flash_attn", flash_attn_func=missing)
    provider = Flash2()
    for _ in range(2):
        with pytest.raises(Ineligible, match="flash2 does not serve such a call"):
            provider.attend(*inputs(), None)
        provider.end()
    assert len(calls) == 1


CALL = Call(
    *((1, 1024, 8, 128),) * 3, torch.bfloat16, torch.device("cuda", 0), strides=((1048576, 1024, 128, 1),) * 3
)


def of_size(size):
    return replace(CALL, query=(1, 64, 8, size), key=(1, 64, 8, size), value=(1, 64, 8, size))


@pytest.mark.parametrize(
    ("provider", "capability", "call", "says"),
    [
        (Flash2, (8, 0), CALL, ""),
        (Flash2, (12, 0), CALL, ""),
        (Flash2, (7, 5), CALL, "flash2 needs compute capability 8.0 or later, this device has 7.5"),
        (Flash2, (9, 0), of_size(264), "multiples of 8 up to 256, this call has 264"),
        (Flash2, (9, 0), of_size(12), "this call has 12"),
        (Flash2, (9, 0), replace(CALL, dtype=torch.float32), "float16 and bfloat16, this call is float32"),
        (Flash2, (9, 0), replace(CALL, grad=True), "no_grad"),
        (Flash3, (9, 0), CALL, ""),
        (Flash3, (10, 0), CALL, "9.0 and no other"),
        (Flash3, (8, 9), CALL, "9.0 and no other"),
        (Flash4, (9, 0), of_size(192), ""),
        (Flash4, (10, 0), of_size(192), "up to 128 or 256 itself"),
        (Flash4, (10, 3), of_size(256), ""),
        (Flash4, (11, 0), CALL, ""),
        (Flash4, (12, 0), CALL, "9, 10 or 11"),
        (Flash4, (8, 0), CALL, "9, 10 or 11"),
    ],
)
def test_eligibility(provider, capability, call, says):
    reason = provider.limits.why_not(call, Machine(capability))
    assert says in reason
    assert bool(says) == bool(reason)


def test_an_old_package_is_refused():
    assert "2.6.3 or later, this is 2.6.2" in Flash2.limits.why_not(CALL, Machine((9, 0)), "2.6.2")
    assert Flash2.limits.why_not(CALL, Machine((9, 0)), "2.8.3.post2") == ""
