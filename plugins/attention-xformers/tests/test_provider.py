"""The package by a stand-in that keeps its rules: full bias shapes, alignment, five axes for grouped heads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from wf_core.api import Ineligible
from wf_lib_attention.call import Call
from wf_lib_attention.machine import Machine
from wf_plugin_attention_xformers.provider import Xformers


class Package:
    """``memory_efficient_attention`` with the arguments of the real one; ``calls`` holds what it was given."""

    def __init__(self, package):
        self.calls = []
        package("xformers")
        package("xformers.ops", memory_efficient_attention=self.attention)

    def attention(self, query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
        self.calls.append((query, key, value, attn_bias, scale))
        assert p == 0.0 and op is None and output_dtype is None
        assert query.shape[-1] % (16 // query.itemsize) == 0, "head size not aligned"
        assert query.shape[2:] == key.shape[2:] == value.shape[2:], "as many key heads as query heads"
        axes = query.dim()
        heads = query.shape[2 : axes - 1]
        if attn_bias is not None:
            assert attn_bias.shape == (query.shape[0], *heads, query.shape[1], key.shape[1]), "bias in full"
            assert attn_bias.dtype is query.dtype
            assert all(stride % 8 == 0 for stride in attn_bias.stride()[:-1]), "bias not aligned"
            attn_bias = attn_bias.flatten(1, axes - 3)
        flat = (x.flatten(2, axes - 2).transpose(1, 2) for x in (query, key, value))
        out = F.scaled_dot_product_attention(*flat, attn_bias, scale=scale)
        if attn_bias is not None:
            out = out.masked_fill(attn_bias.isneginf().all(dim=-1, keepdim=True), torch.nan)
        return out.transpose(1, 2).unflatten(2, heads)


@pytest.fixture
def xformers(package, on):
    on(9, 0)
    return Package(package)


TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5}


@pytest.mark.parametrize("size", [12, 64, 100])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_layout_scale_and_result(dtype, size, xformers, inputs, reference, relative_error):
    q, k, v = inputs(size=size, dtype=dtype)
    provider = Xformers()
    out = provider.attend(q, k, v, None)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert relative_error(out, reference(q, k, v)) <= TOLERANCE[dtype]
    assert xformers.calls[0][4] == size**-0.5, "the scale of the head that is not padded"
    assert provider.evidence()["operators"] == {"xformers.ops.memory_efficient_attention": 1}


def test_what_needs_no_padding_is_handed_over_as_it_comes(xformers, inputs):
    q, k, v = inputs()
    Xformers().attend(q, k, v, None)
    assert [x.data_ptr() for x in xformers.calls[0][:3]] == [x.data_ptr() for x in (q, k, v)]


MASKS = [(17,), (33, 17), (2, 1, 1, 17), (1, 8, 33, 17), (2, 8, 1, 17), (2, 1, 33, 1)]


@pytest.mark.parametrize("key_heads", [8, 2, 1])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_are_a_bias(shape, key_heads, xformers, inputs, reference, relative_error):
    q, k, v = inputs(heads=8, key_heads=key_heads)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4
    if len(shape) > 1 and shape[0] > 1:
        mask[0] = False
    out = Xformers().attend(q, k, v, mask)
    assert relative_error(out, reference(q, k, v, mask)) <= 2e-3, "NaN means that empty rows were not zeroed"


def test_grouped_heads_are_views_on_five_axes(xformers, inputs, reference, relative_error):
    q, k, v = inputs(heads=8, key_heads=2)
    provider = Xformers()
    assert relative_error(provider.attend(q, k, v, None), reference(q, k, v)) <= 2e-3
    query, key, value, _, _ = xformers.calls[0]
    assert query.shape == (2, 33, 2, 4, 64)
    assert (key.shape, key.stride(3), key.data_ptr()) == ((2, 17, 2, 4, 64), 0, k.data_ptr())
    assert provider.evidence()["around"] == ["key heads shared by views"]


def test_no_kernel_for_the_call_is_a_reason_and_is_remembered(package, on, inputs):
    on(9, 0)
    calls = []

    def without(query, key, value, attn_bias=None, p=0.0, scale=None):
        calls.append(query.shape)
        raise NotImplementedError(
            "No operator found for `memory_efficient_attention_forward`:\n`x` is not supported"
        )

    package("xformers.ops", memory_efficient_attention=without)
    provider = Xformers()
    for _ in range(2):
        with pytest.raises(
            Ineligible, match=r"xformers does not serve such a call \(NotImplementedError: No op"
        ):
            provider.attend(*inputs(), None)
        provider.end()
    assert len(calls) == 1


def test_a_wheel_for_another_torch_is_refused_at_open(package, monkeypatch):
    import sys

    class Broken:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.startswith("xformers"):
                raise OSError("undefined symbol: _ZN3c10")

    monkeypatch.delitem(sys.modules, "xformers.ops", raising=False)
    monkeypatch.delitem(sys.modules, "xformers", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    with pytest.raises(
        Ineligible, match=r"xformers\.ops\.memory_efficient_attention cannot be imported \(OSError"
    ):
        Xformers().prepare({})


CALL = Call(
    *((1, 1024, 8, 128),) * 3, torch.bfloat16, torch.device("cuda", 0), strides=((1048576, 1024, 128, 1),) * 3
)


@pytest.mark.parametrize(
    ("capability", "call", "version", "says"),
    [
        ((9, 0), CALL, "0.0.35", ""),
        ((9, 0), CALL, "0.0.28", "0.0.29 or later, this is 0.0.28"),
        ((5, 2), CALL, "", "6.0 or later"),
        ((7, 5), CALL, "", "8.0 for bfloat16, this device has 7.5"),
        ((7, 5), replace(CALL, dtype=torch.float16), "", ""),
        ((9, 0), replace(CALL, dtype=torch.float64), "", "float64"),
        ((9, 0), replace(CALL, mask=(1, 1, 1, 1024)), "", ""),
        ((9, 0), replace(CALL, mask=(3, 1, 1, 1024)), "", "does not broadcast"),
        ((9, 0), replace(CALL, grad=True), "", "no_grad"),
    ],
)
def test_eligibility(capability, call, version, says):
    reason = Xformers.limits.why_not(call, Machine(capability), version)
    assert says in reason
    assert bool(says) == bool(reason)
