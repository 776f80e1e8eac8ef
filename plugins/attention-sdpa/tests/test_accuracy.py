"""Every backend that runs on the CPU, against float64 by the definition."""

from __future__ import annotations

import pytest
import torch

BACKENDS = ["sdpa", "math", "torch-flash", "flex"]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def some_mask() -> torch.Tensor:
    """[2, 1, 33, 17] with one row that attends to nothing."""
    mask = torch.rand(2, 1, 33, 17, generator=torch.Generator().manual_seed(5)) > 0.3
    mask[:, :, 5] = False
    return mask


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("size", [12, 64, 128])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_cross_lengths(backend, dtype, size, masked, provider, inputs, reference, relative_error):
    q, k, v = inputs(size=size, dtype=dtype)
    mask = some_mask() if masked else None
    out = provider(backend).attend(q, k, v, mask)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert relative_error(out, reference(q, k, v, mask)) <= TOLERANCE[dtype]
    assert not masked or not out[:, 5].any(), "a row that attends to nothing must be zero"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_self_lengths(backend, dtype, provider, inputs, reference, relative_error):
    q, k, v = inputs(lq=129, lk=129, size=64, dtype=dtype)
    assert relative_error(provider(backend).attend(q, k, v, None), reference(q, k, v)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("backend", ["math", "torch-flash"])
def test_float64_is_exact_to_rounding(backend, provider, inputs, reference, relative_error):
    q, k, v = inputs(dtype=torch.float64, size=12)
    assert (
        relative_error(provider(backend).attend(q, k, v, some_mask()), reference(q, k, v, some_mask()))
        <= 1e-14
    )


@pytest.mark.parametrize(
    "shape", [(17,), (33, 17), (1, 17), (3, 1, 17), (2, 1, 1, 17), (1, 3, 33, 17), (2, 3, 33, 1)], ids=str
)
@pytest.mark.parametrize("backend", ["math", "torch-flash", "flex"])
def test_every_mask_that_broadcasts(backend, shape, provider, inputs, reference, relative_error):
    q, k, v = inputs(size=12)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(7)) > 0.4
    assert relative_error(provider(backend).attend(q, k, v, mask), reference(q, k, v, mask)) <= 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_grouped_heads_are_interleaved(backend, provider, inputs, reference, relative_error):
    q, k, v = inputs(heads=8, key_heads=2, size=16)
    exact = reference(q, k, v)
    assert relative_error(provider(backend).attend(q, k, v, None), exact) <= 1e-5
    tiled = reference(q, k.repeat(1, 1, 4, 1), v.repeat(1, 1, 4, 1))
    assert relative_error(tiled, exact) > 0.1, "the other pairing must not pass this test"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_head_axis_with_a_stride_is_read_right(backend, provider, inputs, reference, relative_error):
    """The CPU flash operator reads other memory for such a tensor, without an error."""
    q, k, v = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in inputs(size=12))
    assert q.stride(-1) != 1
    assert relative_error(provider(backend).attend(q, k, v, None), reference(q, k, v)) <= 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_one_fused_projection(backend, provider, reference, relative_error):
    fused = torch.randn(2, 20, 3 * 4 * 16, generator=torch.Generator().manual_seed(1))
    q, k, v = (x.unflatten(-1, (4, 16)) for x in fused.chunk(3, dim=-1))
    assert relative_error(provider(backend).attend(q, k, v, None), reference(q, k, v)) <= 1e-5


def test_the_math_operator_would_misread_a_boolean_mask(inputs, reference, relative_error):
    """Why masks are turned into a bias here: the operator itself adds True as 1. Fails if torch mends it."""
    q, k, v = (x.transpose(1, 2) for x in inputs())
    raw = torch.ops.aten._scaled_dot_product_attention_math.default(q, k, v, some_mask())[0]
    exact = reference(*(x.transpose(1, 2) for x in (q, k, v)), some_mask()).transpose(1, 2)
    assert relative_error(raw, exact) > 0.1
