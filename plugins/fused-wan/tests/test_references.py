"""The plain torch forms beside the stock expressions, and which calls the kernels refuse, with the reason."""

from __future__ import annotations

import pytest
import stock_typed
import stock_wan
import torch
from diffusers.models.normalization import FP32LayerNorm

from wf_core.api import TokenRows
from wf_plugin_fused_wan import gated_residual, norm_modulate, norm_rope
from wf_plugin_fused_wan.norm_rope import Form
from wf_plugin_fused_wan.rope import FLOAT_EPS

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = 1e-6
HEADS, HEAD = 3, 16


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def rows(how, width):
    """scale, shift, gate as the block makes them, and what the seam gets for them."""
    if how == "shared":
        return list(torch.randn(2, 6, width).chunk(6, dim=1)[:3]), None
    if how == "per token":
        return [row.squeeze(2) for row in torch.randn(2, 7, 6, width).chunk(6, dim=2)[:3]], None
    return [row.squeeze(2) for row in torch.randn(2, 2, 6, width).chunk(6, dim=2)[:3]], torch.randint(
        0, 2, (2, 7)
    )


def dense(row, index):
    return row if index is None else TokenRows(row, index).dense()


@pytest.mark.parametrize("how", ["shared", "per token", "by index"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_residuals_are_bit_for_bit_stock(dtype, how):
    norm = FP32LayerNorm(48, eps=EPS, elementwise_affine=False)
    x, out = (torch.randn(2, 7, 48).to(dtype) for _ in range(2))
    (scale, shift, gate), index = rows(how, 48)
    expected = stock_wan.norm_modulate(norm, x, dense(scale, index), dense(shift, index))
    assert torch.equal(norm_modulate.reference(x, None, None, scale, shift, index, EPS), expected)
    expected = stock_wan.gated_residual(x, out, dense(gate, index))
    assert torch.equal(gated_residual.reference(x, out, gate, index), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_of_a_cross_attention_is_bit_for_bit_stock(dtype):
    norm = FP32LayerNorm(48, eps=EPS, elementwise_affine=True)
    torch.nn.init.normal_(norm.weight)
    norm.to(dtype)
    x = torch.randn(2, 7, 48).to(dtype)
    expected = stock_wan.norm_modulate(norm, x, None, None)
    ours = norm_modulate.reference(x, norm.weight, norm.bias, None, None, None, EPS)
    assert torch.equal(ours, expected)
    assert torch.equal(
        gated_residual.reference(x, x * 3, None, None), stock_wan.gated_residual(x, x * 3, None)
    )


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("how", ["shared", "per token"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_the_models_dtype_are_no_further_from_float64_than_stock(dtype, how):
    """In float32 they are bit for bit stock's; elsewhere there are fewer roundings than stock has."""
    norm = torch.nn.LayerNorm(48, eps=EPS, elementwise_affine=False)
    x, out = (torch.randn(2, 7, 48).to(dtype) for _ in range(2))
    scale, shift, gate = (row.to(dtype) for row in rows(how, 48)[0])
    wide = [tensor.double() for tensor in (x, out, scale, shift, gate)]
    pairs = [
        (
            norm_modulate.reference(x, None, None, scale, shift, None, EPS),
            stock_typed.norm_modulate(norm, x, scale, shift),
            stock_typed.norm_modulate(norm, wide[0], *wide[2:4]),
        ),
        (
            gated_residual.reference(x, out, gate, None),
            stock_typed.gated_residual(x, out, gate),
            stock_typed.gated_residual(wide[0], wide[1], wide[4]),
        ),
    ]
    for ours, stock, exact in pairs:
        assert ours.dtype == stock.dtype == dtype
        assert torch.equal(ours, stock) == (dtype == torch.float32)
        assert error(ours, exact) <= 1.1 * error(stock, exact)


def rotation(dtype, eps=EPS, keys=7):
    norms = tuple(torch.nn.RMSNorm(HEADS * HEAD, eps=eps).to(dtype) for _ in range(2))
    query, key = torch.randn(2, 7, HEADS * HEAD).to(dtype), torch.randn(2, keys, HEADS * HEAD).to(dtype)
    angles = (torch.rand(1, 7, 1, HEAD // 2) * 9).repeat_interleave(2, dim=-1)
    return query, key, norms, (angles.cos(), angles.sin())


def reference(query, key, norms, tables, form):
    cos, sin = tables or (None, None)
    return norm_rope.reference(query, key, norms[0].weight, norms[1].weight, cos, sin, form)


def test_a_rotation_is_bit_for_bit_stock_in_float32():
    query, key, norms, tables = rotation(torch.float32)
    ours = reference(query, key, norms, tables, Form(HEADS, (EPS, EPS)))
    stock = stock_wan.norm_and_rotate(query, key, norms, HEADS, tables)
    assert all(torch.equal(*pair) for pair in zip(ours, stock, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rotation_with_one_rounding_less_is_nearer_to_float64(dtype, precision):
    query, key, norms, tables = rotation(dtype)
    ours, _ = reference(query, key, norms, tables, Form(HEADS, (EPS, EPS), double=precision == "fp64"))
    stock, _ = stock_wan.norm_and_rotate(query, key, norms, HEADS, tables)
    wide = tuple(norm.double() for norm in norms)
    exact, _ = stock_wan.norm_and_rotate(
        query.double(), key.double(), wide, HEADS, tuple(t.double() for t in tables)
    )
    assert (ours - exact).norm() < 0.9 * (stock - exact).norm()
    assert not torch.equal(ours, stock)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cross_attention_gets_the_norm_alone_and_the_default_eps(dtype):
    query, key, norms, _ = rotation(dtype, eps=None, keys=4)
    query = query * 1e-3  # so small that eps decides
    ours = reference(query, key, norms, None, Form(HEADS, (FLOAT_EPS, FLOAT_EPS)))
    stock = stock_wan.norm_and_rotate(query, key, norms, HEADS, None)
    assert all(torch.equal(*pair) for pair in zip(ours, stock, strict=True))


def test_padding_is_not_rotated_and_a_rank_starts_where_its_rows_do():
    query, key, norms, tables = rotation(torch.float32)
    whole, _ = reference(query, key, norms, tables, Form(HEADS, (EPS, EPS)))
    part, _ = reference(query[:, 4:], key, norms, tables, Form(HEADS, (EPS, EPS), offset=4, valid=6))
    assert torch.equal(part[:, :2], whole[:, 4:6])
    assert torch.equal(part[:, 2:], norms[0](query[:, 6:]).unflatten(2, (HEADS, -1)))


def test_halves_are_turned_by_the_first_half_of_the_tables():
    query, key, norms, _ = rotation(torch.float32)
    angles = torch.rand(7, HEAD // 2) * 9
    tables = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    ours, _ = reference(query, key, norms, tables, Form(HEADS, (EPS, EPS), pairing="halves"))
    x = norms[0](query).unflatten(2, (HEADS, -1))
    turned = torch.cat([-x[..., HEAD // 2 :], x[..., : HEAD // 2]], -1)
    torch.testing.assert_close(ours, x * tables[0][:, None] + turned * tables[1][:, None])


def test_tables_that_end_before_the_tokens_are_not_stretched():
    query, key, norms, tables = rotation(torch.float32)
    with pytest.raises(RuntimeError, match="size"):
        reference(query, key, norms, [table[:, :5] for table in tables], Form(HEADS, (EPS, EPS)))


X = torch.zeros(2, 7, 48)
ROW = torch.zeros(2, 1, 48)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((X.double(), None, None, None, None, None, EPS), "the hidden states is float64"),
        ((torch.zeros(1, 1, 9000), None, None, None, None, None, EPS), "rows of up to 8192"),
        ((X, None, None, torch.zeros(2, 1, 96)[..., ::2], ROW, None, EPS), "channels of the scale are not adjacent"),
        ((X, torch.zeros(24), None, None, None, None, EPS), "the norm's weight is [24]"),
        ((X, None, None, ROW.bfloat16(), ROW, None, EPS), "the scale is bfloat16, and the kernel takes float32"),
        ((X.half(), None, None, ROW.bfloat16(), ROW, None, EPS), "the kernel takes float32 or float16"),
        ((X, None, None, ROW, torch.zeros(2, 3, 48), None, EPS), "3 rows for 7 tokens and no index"),
        ((X, None, None, ROW, ROW, torch.zeros(2, 5, dtype=torch.int64), EPS), "index of the scale is int64 [2, 5]"),
        ((X, None, None, torch.zeros(2, 7, 48), ROW, None, EPS), "the scale is [2, 7, 48] and the shift [2, 1, 48]"),
        ((X.to("meta"), torch.zeros(48), None, None, None, None, EPS), "the norm's weight is on cpu"),
    ],
)  # fmt: skip
def test_a_norm_that_the_kernel_cannot_serve_is_refused_with_the_reason(args, said):
    assert said in norm_modulate.ineligible(*args)


def test_a_residual_of_another_dtype_is_refused():
    assert "float16" in gated_residual.ineligible(X, X.half(), None, None)
    assert gated_residual.ineligible(X, X, ROW, None) == ""
    for rows_of in (ROW, ROW.half()):
        assert gated_residual.ineligible(X.half(), X.half(), rows_of, None) == ""


def test_a_gradient_is_refused():
    with torch.enable_grad():
        assert "gradient" in gated_residual.ineligible(X.clone().requires_grad_(), X, None, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"form": Form(5, (EPS, EPS))}, "5 heads do not split 48 channels"),
        ({"key": X.half()}, "float16"),
        ({"weights": (torch.zeros(48), None)}, "only one of the norms"),
        ({"weights": (torch.zeros(16), torch.zeros(16))}, "the norm is over 48 channels"),
        ({"tables": (torch.zeros(7, 16).bfloat16(), torch.zeros(7, 16))}, "the cosine table is bfloat16"),
        ({"tables": (torch.zeros(7, 8), torch.zeros(7, 8))}, "[7, 8], and heads have 16 channels"),
        (
            {"tables": (torch.zeros(1, 7, 1, 16), torch.zeros(7, 3, 16))},
            "[7, 3, 16], and heads have 16 channels",
        ),
        ({"tables": (torch.zeros(7, 32)[:, ::2], torch.zeros(7, 16))}, "not adjacent in memory"),
        ({"form": Form(3, (EPS, EPS), valid=9)}, "7 rows, and there are 9 tokens to rotate"),
        ({"form": Form(3, (EPS, EPS), offset=1)}, "7 rows, and there are 8 tokens to rotate"),
        ({"key": torch.zeros(2, 8, 48)}, "7 rows, and there are 8 tokens to rotate"),
        ({"query": torch.zeros(1, 1, 9000), "key": torch.zeros(1, 1, 9000)}, "takes up to 8192"),
    ],
)
def test_a_rotation_that_the_kernel_cannot_serve_is_refused_with_the_reason(changes, said):
    given = {"query": X, "key": X, "weights": (None, None), "form": Form(3, (EPS, EPS))}
    given = {**given, "tables": (torch.zeros(1, 7, 1, 16), torch.zeros(7, 16)), **changes}
    args = (given["query"], given["key"], *given["weights"], *given["tables"], given["form"])
    assert said in norm_rope.ineligible(*args)
