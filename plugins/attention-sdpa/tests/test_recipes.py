"""What is done around the CUDA operators, on the CPU: a stand-in kernel checks that it gets what they need."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from wf_lib_attention.call import Call
from wf_plugin_attention_sdpa import operators, recipes
from wf_plugin_attention_sdpa.operators import Operator


def strict(operator: Operator) -> Operator:
    """``operator`` with its contract checked and its work done by the public function; garbage in empty rows."""
    multiple = operator.multiple or {}

    def bind(call, scale):
        def kernel(q, k, v, bias):
            for x in (q, k, v):
                unit = 16 // x.element_size()
                assert x.shape[-1] % multiple.get(x.element_size(), 1) == 0, "head size not padded"
                assert x.stride(-1) == 1, "head axis not dense"
                if operator.aligned and x.stride(-2) != 0:
                    assert all(s % unit == 0 for s in x.stride()[:-1]), "strides not aligned"
                    assert x.storage_offset() % unit == 0, "offset not aligned"
            assert operator.groups == "own" or q.shape[1] == k.shape[1], "fewer key heads"
            if bias is not None:
                assert bias.dtype is q.dtype
                assert bias.dim() == 4
                assert not operator.aligned or all(s % 8 == 0 for s in bias.stride()[:-1]), "bias not aligned"
            out = F.scaled_dot_product_attention(
                q, k, v, bias, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            if operator.zeroes or bias is None:
                return out
            empty = (bias <= operator.blocked).all(dim=-1, keepdim=True)
            return out.masked_fill(empty, torch.nan)

        return kernel

    return replace(operator, bind=bind)


OPERATORS = {"flash": operators.FLASH, "efficient": operators.EFFICIENT, "cudnn": operators.CUDNN}


def run(name, q, k, v, mask=None):
    counts = Counter()
    recipe, steps = recipes.build(
        strict(OPERATORS[name]), Call.of(q, k, v, mask), lambda n: counts.update([n])
    )
    return recipe(q, k, v, mask), steps, counts


@pytest.mark.parametrize("size", [12, 20, 64])
@pytest.mark.parametrize("name", OPERATORS)
def test_head_size_is_padded_with_the_scale_of_the_original(name, size, inputs, reference, relative_error):
    q, k, v = inputs(size=size, dtype=torch.float16)
    out, steps, _ = run(name, q, k, v)
    assert out.shape == q.shape
    assert relative_error(out, reference(q, k, v)) <= 2e-3
    assert any("padded" in step for step in steps) == (size % 8 != 0)


def test_a_float32_head_needs_four(inputs, reference, relative_error):
    q, k, v = inputs(size=12)
    out, steps, _ = run("efficient", q, k, v)
    assert steps == ()
    assert relative_error(out, reference(q, k, v)) <= 1e-5


@pytest.mark.parametrize("name", ["efficient", "cudnn"])
@pytest.mark.parametrize("shape", [(17,), (33, 17), (2, 1, 1, 17), (2, 3, 33, 17)], ids=str)
def test_masks(name, shape, inputs, reference, relative_error):
    q, k, v = inputs(dtype=torch.float16)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4
    if len(shape) > 1:
        mask[0] = False
    out, _, _ = run(name, q, k, v, mask)
    assert relative_error(out, reference(q, k, v, mask)) <= 2e-3, (
        "NaN here means that empty rows were not zeroed"
    )


def test_unaligned_inputs_are_copied(inputs, reference, relative_error):
    fused = torch.randn(2, 20, 3 * 64 + 1, generator=torch.Generator().manual_seed(1)).half()
    q, k, v = (x.unflatten(-1, (4, 16)) for x in fused[..., 1:].chunk(3, dim=-1))
    out, steps, _ = run("efficient", q, k, v)
    assert steps == ("inputs made contiguous (not aligned to 16 bytes)",)
    assert relative_error(out, reference(q, k, v)) <= 2e-3


def test_a_contiguous_tensor_at_an_odd_offset_is_copied_too(inputs, reference, relative_error):
    """``contiguous()`` would hand it back as it is: one batch and one head, so that the layouts agree."""
    q, k, v = inputs(batch=1, heads=1, dtype=torch.float16)
    shifted = torch.cat([q.flatten(), q.flatten()])[1 : 1 + q.numel()].view(q.shape)
    assert shifted.transpose(1, 2).is_contiguous()
    out, steps, _ = run("efficient", shifted, k, v)
    assert steps == ("inputs made contiguous (not aligned to 16 bytes)",)
    assert relative_error(out, reference(shifted, k, v)) <= 2e-3


def test_aligned_views_are_not_copied(inputs):
    fused = torch.randn(2, 20, 3 * 64).half()
    q, k, v = (x.unflatten(-1, (4, 16)) for x in fused.chunk(3, dim=-1))
    assert run("efficient", q, k, v)[1] == ()


@pytest.mark.parametrize("name", OPERATORS)
def test_a_head_axis_with_a_stride_is_copied(name, inputs, reference, relative_error):
    q, k, v = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in inputs(dtype=torch.float16))
    out, _, _ = run(name, q, k, v)
    assert relative_error(out, reference(q, k, v)) <= 2e-3


@pytest.mark.parametrize(
    ("name", "mask", "counter"),
    [
        ("efficient", None, "grouped_calls"),
        ("efficient", (33, 17), "grouped_calls"),
        ("efficient", (1, 1, 33, 17), "grouped_calls"),
        ("efficient", (2, 1, 33, 17), "expansions"),
        ("efficient", (1, 8, 33, 17), "expansions"),
        ("cudnn", None, "expansions"),
    ],
)
def test_grouped_heads(name, mask, counter, inputs, reference, relative_error):
    q, k, v = inputs(heads=8, key_heads=2, dtype=torch.float16)
    made = None if mask is None else torch.rand(mask, generator=torch.Generator().manual_seed(3)) > 0.4
    out, _, counts = run(name, q, k, v, made)
    assert relative_error(out, reference(q, k, v, made)) <= 2e-3
    assert counts == {counter: 1}
