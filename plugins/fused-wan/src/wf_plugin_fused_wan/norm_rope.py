"""Query and key norm with the rotary embedding: in plain torch, by one kernel, and which calls the kernel can serve.

Shapes: query ``[B, L, H * D]``, key ``[B, Lk, H * D]``, as the projections gave them; weights ``[H * D]`` (a norm over
all heads), ``[D]`` (over each head), or None; cos and sin fp32 ``[1, N, 1, D]`` or ``[N, D]`` as the model has them,
with every value twice, or None (no rotation). Results ``[B, L, H, D]`` and ``[B, Lk, H, D]``, contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from attrs import frozen
from torch.nn import functional as F

from wf_plugin_fused_wan import launching

Pairing = Literal["interleaved", "halves"]
Pair = tuple[torch.Tensor, torch.Tensor]


@frozen(cache_hash=True)
class Form:
    """What a model fixes: ``per_head`` norms, ``pairing`` of elements 2i and 2i+1 (``interleaved``) or i and i + D/2
    (``halves``), the arithmetic of the rotation. And what a rank does: token l of its rows stands at ``offset + l`` of
    the tables, and rows from ``valid`` on (None: there are none) are padding, which is not rotated.

    ``rounds``: the norms are diffusers' ``RMSNorm``, which rounds to the dtype of query and key before the weight and
    after it. Else they are ``torch.nn.RMSNorm``, in fp32 to its end, whose one rounding is left to the rotation.

    Of the values that the tables hold twice, those read are the even columns of cos and the odd ones of sin, as
    diffusers does, or for ``halves`` the first half of both.
    """

    heads: int
    eps: tuple[float, float]
    per_head: bool = False
    rounds: bool = False
    pairing: Pairing = "interleaved"
    double: bool = False
    offset: int = 0
    valid: int | None = None


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    form: Form,
) -> Pair:
    """Norm in fp32, rotation in fp32 or fp64, one rounding at the end: one less than the stock code, which rounds
    between the two as well. With norms that are rounded, as often as the stock code.
    """
    return (
        _reference(query, query_weight, cos, sin, form.eps[0], form),
        _reference(key, key_weight, cos, sin, form.eps[1], form),
    )


def ineligible(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    form: Form,
) -> str:
    """Why the kernel cannot serve this call; "" when it can."""
    if query.ndim != 3 or key.ndim != 3 or query.shape[-1] != key.shape[-1] or query.dtype != key.dtype:
        return f"query is {query.dtype} {list(query.shape)} and key {key.dtype} {list(key.shape)}"
    width = query.shape[-1]
    if width % (2 * form.heads) or width > launching.MOST_WIDTH:
        most = launching.MOST_WIDTH
        return f"{form.heads} heads do not split {width} channels evenly" if width <= most else (
            f"query and key have {width} channels, and the kernel takes up to {most}"
        )  # fmt: skip
    return (
        launching.unfit("the query", query, query)
        or launching.unfit("the key", key, query)
        or launching.needs_gradient(query, key, query_weight, key_weight)
        or _unfit_weights(query, query_weight, key_weight, form)
        or _unfit_tables(query, max(query.shape[1], key.shape[1]), cos, sin, form)
    )


def launch(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    form: Form,
) -> Pair:
    """By the kernel: in one launch where query and key have as many tokens, else in two. For calls that
    ``ineligible`` has nothing against.
    """
    args = (query, key, query_weight, key_weight, cos, sin, form)
    return plan(*args)(*args)


def plan(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    form: Form,
) -> Callable[..., Pair]:
    """``launch`` for calls of these dtypes, shapes and strides, with all that follows from them computed."""
    together = query.shape == key.shape
    both = _plan(query, key, query_weight, (cos, sin), form, both=True) if together else None
    queries = _plan(query, query, query_weight, (cos, sin), form, both=False)
    keys = _plan(key, key, key_weight, (cos, sin), form, both=False)
    eps, query_shape, key_shape = form.eps, _split(query, form), _split(key, form)

    def run(
        query: torch.Tensor,
        key: torch.Tensor,
        query_weight: torch.Tensor | None,
        key_weight: torch.Tensor | None,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        form: Form,
    ) -> Pair:
        to_query, to_key = query.new_empty(query_shape), key.new_empty(key_shape)
        if both is not None:
            both(query, key, to_query, to_key, query_weight, key_weight, cos, sin, *eps)
            return to_query, to_key
        for go, x, to, weight, number in (
            (queries, query, to_query, query_weight, eps[0]),
            (keys, key, to_key, key_weight, eps[1]),
        ):
            go(x, x, to, to, weight, weight, cos, sin, number, number)
        return to_query, to_key

    return run


def _plan(
    query: torch.Tensor,
    key: torch.Tensor,
    weight: torch.Tensor | None,
    tables: tuple[torch.Tensor | None, torch.Tensor | None],
    form: Form,
    *,
    both: bool,
) -> Callable[..., None]:
    """One launch, of query and key or of one of them: takes what is not a number of the plan."""
    from wf_plugin_fused_wan.rope_kernels import norm_rope_kernel

    batch, tokens, width = query.shape
    head = width // form.heads
    block, pairs = launching.power_above(form.heads), launching.power_above(head // 2)
    rotated = tables[0] is not None
    table_rows = tuple(0 if table is None else table.stride(_rows_of(table)) for table in tables)
    strides = (query.stride(0), query.stride(1), key.stride(0), key.stride(1), *table_rows)
    numbers = (tokens, *strides, form.offset, form.offset + tokens if form.valid is None else form.valid)
    constants: dict[str, Any] = {
        "HEADS": form.heads,
        "HEAD": head,
        "BOTH": both,
        "WEIGHTED": weight is not None,
        "PER_HEAD": form.per_head,
        "ROUNDS": form.rounds,
        "ROTATED": rotated,
        "HALVES": form.pairing == "halves",
        "DOUBLE": form.double,
        "BLOCK": block,
        "PAIRS": pairs,
        "num_warps": 2 if 2 * block * pairs <= 2048 else 4,
        "enable_fp_fusion": True,
    }

    go = launching.launcher(norm_rope_kernel, query.device, (tokens, batch), constants)
    return lambda *arguments: go(*arguments, *numbers)


def _split(x: torch.Tensor, form: Form) -> tuple[int, ...]:
    """``[B, L, H * D]`` -> B, L, H, D."""
    return (*x.shape[:2], form.heads, x.shape[-1] // form.heads)


def _reference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    eps: float,
    form: Form,
) -> torch.Tensor:
    split = x.unflatten(-1, (form.heads, -1))
    y = _normed(split if form.per_head else x, weight, eps, form).view(split.shape)
    if cos is None or sin is None:
        return y.type_as(x)
    cos, sin = (_placed(table, x.shape[1], form, which) for which, table in enumerate((cos, sin)))
    out = torch.empty(split.shape, dtype=x.dtype, device=x.device)
    first, second = _pairs(y.to(cos.dtype), form)
    to_first, to_second = _pairs(out, form)
    to_first.copy_(first * cos - second * sin)
    to_second.copy_(first * sin + second * cos)
    return out


def _normed(x: torch.Tensor, weight: torch.Tensor | None, eps: float, form: Form) -> torch.Tensor:
    """The RMS norm over the last dimension: fp32, or of x's dtype where the norm is rounded."""
    wide = x.float()
    if not form.rounds:
        return F.rms_norm(wide, wide.shape[-1:], None if weight is None else weight.float(), eps)
    y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return y if weight is None else (y * weight).to(x.dtype)


def _pairs(x: torch.Tensor, form: Form) -> Pair:
    """Views of the first and second elements of the pairs of ``[B, L, H, D]``."""
    if form.pairing == "halves":
        first, second = x.chunk(2, dim=-1)
        return first, second
    return x[..., 0::2], x[..., 1::2]


def _placed(table: torch.Tensor, tokens: int, form: Form, which: int) -> torch.Tensor:
    """The rows of the tokens, ``[L, 1, D / 2]``, of cos (0) or sin (1); 1 or 0 where they are padding."""
    rows = table.flatten(0, -2)
    rows = rows[:, : rows.shape[1] // 2] if form.pairing == "halves" else rows[:, which::2]
    end = form.offset + tokens
    rows = rows[form.offset : end if form.valid is None else min(end, form.valid)]
    if form.valid is not None and rows.shape[0] < tokens:
        rows = torch.cat([rows, rows.new_full((tokens - rows.shape[0], rows.shape[1]), 1.0 - which)])
    return (rows.double() if form.double else rows).unsqueeze(1)


def _rows_of(table: torch.Tensor) -> int:
    """Which dimension of a table, ``[1, N, 1, D]`` or ``[N, D]``, is that of the tokens."""
    return 1 if table.ndim == 4 else 0


def _unfit_weights(
    query: torch.Tensor, query_weight: torch.Tensor | None, key_weight: torch.Tensor | None, form: Form
) -> str:
    if (query_weight is None) != (key_weight is None):
        return "only one of the norms of query and key has a weight"
    expected = query.shape[-1] // form.heads if form.per_head else query.shape[-1]
    for name, weight in (
        ("the weight of the query's norm", query_weight),
        ("the weight of the key's norm", key_weight),
    ):
        if weight is None:
            continue
        reason = launching.unfit(name, weight, query)
        if not reason and weight.shape != (expected,):
            reason = f"{name} is {list(weight.shape)}, and the norm is over {expected} channels"
        if not reason and form.rounds and weight.dtype != query.dtype:
            reason = (
                f"{name} is {weight.dtype} and the query {query.dtype}: the norm would give another dtype"
            )
        if reason:
            return reason
    return ""


def _unfit_tables(
    query: torch.Tensor, tokens: int, cos: torch.Tensor | None, sin: torch.Tensor | None, form: Form
) -> str:
    if cos is None or sin is None:
        return ""
    head = query.shape[-1] // form.heads
    last = form.offset + tokens if form.valid is None else form.valid
    for name, table in (("the cosine table", cos), ("the sine table", sin)):
        reason = launching.unfit(name, table, query, (torch.float32,))
        if reason:
            return reason
        rows = table.shape[_rows_of(table)]
        if tuple(table.shape) not in ((1, rows, 1, head), (rows, head)):
            return f"{name} is {list(table.shape)}, and heads have {head} channels"
        if last > rows:
            return f"{name} has {rows} rows, and there are {last} tokens to rotate"
    return ""
