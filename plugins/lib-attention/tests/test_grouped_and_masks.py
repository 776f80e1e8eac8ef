"""Grouped heads in three exact ways, and masks as what kernels take."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from wf_lib_attention import grouped, masks


def kernel(q, k, v, mask):
    """One that takes no groups."""
    assert q.shape[1] == k.shape[1], "fewer key heads"
    return F.scaled_dot_product_attention(q, k, v, mask)


def some(shape, seed=3):
    return None if shape is None else torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4


def run(serve, q, k, v, mask):
    return serve(kernel, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask).transpose(1, 2)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("serve", [grouped.by_view, grouped.by_copy, grouped.by_fold])
def test_query_head_h_uses_key_head_h_over_g(serve, key_heads, inputs, reference, relative_error):
    q, k, v = inputs(heads=8, key_heads=key_heads, size=16)
    exact = reference(q, k, v)
    assert relative_error(run(serve, q, k, v, None), exact) <= 1e-5
    tiled = reference(q, *(x.repeat(1, 1, 8 // key_heads, 1) for x in (k, v)))
    assert key_heads == 1 or relative_error(tiled, exact) > 0.1, "the other pairing must not pass this test"


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 17), (2, 1, 33, 17), (1, 8, 1, 17), (2, 8, 33, 17), (2, 8, 33, 1)], ids=str
)
@pytest.mark.parametrize("serve", [grouped.by_copy, grouped.by_fold])
def test_masks_of_every_shape(serve, shape, inputs, reference, relative_error):
    q, k, v = inputs(heads=8, key_heads=2, size=16)
    mask = some(shape)
    assert relative_error(run(serve, q, k, v, mask), reference(q, k, v, mask)) <= 1e-5


def test_a_view_repeats_no_key():
    """For one batch in BLHD memory key and value reach the kernel as views with stride 0 on the group axis."""
    seen = {}

    def spy(q, k, v, bias):
        seen.update(stride=k.stride(), pointer=k.data_ptr(), shape=k.shape)
        return q

    q, k = torch.randn(1, 6, 8, 16).transpose(1, 2), torch.randn(1, 6, 2, 16).transpose(1, 2)
    grouped.by_view(spy, q, k, k, None)
    assert seen == {"stride": (16, 0, 32, 1), "pointer": k.data_ptr(), "shape": (2, 4, 6, 16)}


def test_folding_hands_key_and_value_on_as_they_are():
    seen = []
    q, k = torch.randn(2, 6, 8, 16).transpose(1, 2), torch.randn(2, 5, 2, 16).transpose(1, 2)
    grouped.by_fold(lambda q, k, v, b: seen.append((k, v)) or q, q, k, k, None)
    assert seen[0][0] is k and seen[0][1] is k


@pytest.mark.parametrize(("shape", "shared"), [(None, True), ((33, 17), True), ((1, 1, 1, 17), True)])
def test_a_mask_without_heads_and_batches_is_shared(shape, shared):
    assert grouped.is_shared(shape) == shared
    assert not grouped.is_shared((2, 1, 1, 17))


@pytest.mark.parametrize("keys", [8, 17])
def test_a_bias_lies_in_rows_of_the_multiple(keys):
    mask = some((2, 1, 3, keys))
    bias = masks.additive(mask, torch.float16, keys, multiple=8)
    assert bias.shape == mask.shape
    assert all(stride % 8 == 0 for stride in bias.stride()[:-1])
    assert torch.equal(bias == 0, mask)
    assert torch.equal(bias.isneginf(), ~mask)


def test_one_column_is_written_out():
    assert masks.additive(torch.ones(1, 1, 3, 1, dtype=torch.bool), torch.float32, 5).shape == (1, 1, 3, 5)


def test_rows_that_attend_to_nothing_are_zeros():
    out = torch.full((1, 2, 3, 4), torch.nan)
    mask = torch.tensor([[[[True, False], [False, False], [True, True]]]])
    cleaned = masks.zero_empty_rows(out, mask)
    assert (cleaned[:, :, 1] == 0).all()
    assert cleaned[:, :, (0, 2)].isnan().all(), "other rows are left as they are"
