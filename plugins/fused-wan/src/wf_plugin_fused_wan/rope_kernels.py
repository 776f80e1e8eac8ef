"""The Triton kernel of the query and key norm with the rotary embedding. Imports triton: loaded at the first launch.

A row (all heads of one token) is a tile of heads by pairs, held as two tiles: the first and the second element of each
pair. So one row of the tables serves all heads of the query and of the key.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, untyped-decorator"
# Triton reads the annotations of arguments: what is no tl.constexpr has none.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _pairs(
    at,
    heads,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    STEP: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """First and second elements of the pairs of one row, fp32, zero outside. ``STEP``: from head to head."""
    if HALVES:
        columns = tl.arange(0, PAIRS)[None, :]
        mask = (heads < HEADS) & (columns < HEAD // 2)
        first = tl.load(at + heads * STEP + columns, mask=mask, other=0.0)
        second = tl.load(at + heads * STEP + columns + HEAD // 2, mask=mask, other=0.0)
    else:
        columns = tl.arange(0, 2 * PAIRS)[None, :]
        mask = (heads < HEADS) & (columns < HEAD)
        both = tl.load(at + heads * STEP + columns, mask=mask, other=0.0)
        first, second = tl.split(tl.reshape(both, (BLOCK, PAIRS, 2)))
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _store_pairs(
    at,
    first,
    second,
    heads,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """One rounding to the result's dtype, and back where the pairs came from."""
    first = first.to(at.dtype.element_ty)
    second = second.to(at.dtype.element_ty)
    if HALVES:
        columns = tl.arange(0, PAIRS)[None, :]
        mask = (heads < HEADS) & (columns < HEAD // 2)
        tl.store(at + heads * HEAD + columns, first, mask=mask)
        tl.store(at + heads * HEAD + columns + HEAD // 2, second, mask=mask)
    else:
        columns = tl.arange(0, 2 * PAIRS)[None, :]
        mask = (heads < HEADS) & (columns < HEAD)
        both = tl.reshape(tl.join(first, second), (BLOCK, 2 * PAIRS))
        tl.store(at + heads * HEAD + columns, both, mask=mask)


@triton.jit
def _rounded(first, second, ROUNDS: tl.constexpr, TO: tl.constexpr):
    """fp32 values that are of the dtype ``TO``, where the norm rounds; else those given."""
    if ROUNDS:
        first = first.to(TO).to(tl.float32)
        second = second.to(TO).to(tl.float32)
    return first, second


@triton.jit
def _normed(
    first,
    second,
    weight_ptr,
    eps,
    heads,
    TO: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    WEIGHTED: tl.constexpr,
    PER_HEAD: tl.constexpr,
    ROUNDS: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """RMS norm over the row, or over each head, with the weight of all heads, or of one. Where it ``ROUNDS``, to ``TO``
    before the weight and after it.
    """
    squares = tl.sum(first * first + second * second, 1)
    if PER_HEAD:
        inverse = tl.div_rn(1.0, tl.sqrt_rn(squares / HEAD + eps))[:, None]
    else:
        inverse = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, 0) / (HEADS * HEAD) + eps))
    first, second = _rounded(first * inverse, second * inverse, ROUNDS, TO)
    if WEIGHTED:
        STEP: tl.constexpr = 0 if PER_HEAD else HEAD
        w_first, w_second = _pairs(weight_ptr, heads, HEADS, HEAD, STEP, HALVES, BLOCK, PAIRS)
        first, second = _rounded(first * w_first, second * w_second, ROUNDS, TO)
    return first, second


@triton.jit
def _turned(first, second, cos, sin, DOUBLE: tl.constexpr):
    """``(a cos - b sin, a sin + b cos)`` in fp32 or fp64, given back in fp32."""
    if DOUBLE:
        first = first.to(tl.float64)
        second = second.to(tl.float64)
        cos = cos.to(tl.float64)
        sin = sin.to(tl.float64)
    turned = first * cos - second * sin
    second = first * sin + second * cos
    return turned.to(tl.float32), second.to(tl.float32)


@triton.jit
def norm_rope_kernel(
    query_ptr,
    key_ptr,
    query_result_ptr,
    key_result_ptr,
    query_weight_ptr,
    key_weight_ptr,
    cos_ptr,
    sin_ptr,
    query_eps,
    key_eps,
    tokens,
    query_batch,
    query_token,
    key_batch,
    key_token,
    cos_row,
    sin_row,
    offset,
    valid,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BOTH: tl.constexpr,
    WEIGHTED: tl.constexpr,
    PER_HEAD: tl.constexpr,
    ROUNDS: tl.constexpr,
    ROTATED: tl.constexpr,
    HALVES: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """One token: norm and rotation of its query and, where ``BOTH``, of its key. Both are loaded before either is
    stored, as a load that follows a store waits for it.
    """
    token = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    wide = token.to(tl.int64)
    heads = tl.arange(0, BLOCK)[:, None]
    TO: tl.constexpr = query_result_ptr.dtype.element_ty
    result = (batch * tokens + wide) * (HEADS * HEAD)

    at = query_ptr + batch * query_batch + wide * query_token
    q_first, q_second = _pairs(at, heads, HEADS, HEAD, HEAD, HALVES, BLOCK, PAIRS)
    if BOTH:
        at = key_ptr + batch * key_batch + wide * key_token
        k_first, k_second = _pairs(at, heads, HEADS, HEAD, HEAD, HALVES, BLOCK, PAIRS)
    if ROTATED:
        pairs = tl.arange(0, PAIRS)[None, :]
        place = pairs * 0 + (token + offset)
        turns = (pairs < HEAD // 2) & (place < valid)
        # each value is there twice: the even columns of cos and the odd ones of sin, or the first half of both
        STEP: tl.constexpr = 1 if HALVES else 2
        cos = tl.load(cos_ptr + place.to(tl.int64) * cos_row + STEP * pairs, mask=turns, other=1.0)
        sin = tl.load(sin_ptr + place.to(tl.int64) * sin_row + STEP * pairs + STEP - 1, mask=turns, other=0.0)

    q_first, q_second = _normed(
        q_first, q_second, query_weight_ptr, query_eps, heads, TO,
        HEADS, HEAD, WEIGHTED, PER_HEAD, ROUNDS, HALVES, BLOCK, PAIRS,
    )  # fmt: skip
    if ROTATED:
        q_first, q_second = _turned(q_first, q_second, cos, sin, DOUBLE)
    _store_pairs(query_result_ptr + result, q_first, q_second, heads, HEADS, HEAD, HALVES, BLOCK, PAIRS)
    if BOTH:
        k_first, k_second = _normed(
            k_first, k_second, key_weight_ptr, key_eps, heads, TO,
            HEADS, HEAD, WEIGHTED, PER_HEAD, ROUNDS, HALVES, BLOCK, PAIRS,
        )  # fmt: skip
        if ROTATED:
            k_first, k_second = _turned(k_first, k_second, cos, sin, DOUBLE)
        _store_pairs(key_result_ptr + result, k_first, k_second, heads, HEADS, HEAD, HALVES, BLOCK, PAIRS)
