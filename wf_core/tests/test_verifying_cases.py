"""The calls that attention is tried on, and the float64 reference that they are compared with."""

from __future__ import annotations

import attrs
import pytest
import torch

from wf_core.verifying import reference
from wf_core.verifying.cases import LARGE, MASKS, SMALL, VALUES, VIEWS, Case, Inputs, make, schedule
from wf_core.verifying.checks import errors, problem

CPU = torch.device("cpu")


def inputs(case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> Inputs:
    return make(case, dtype, CPU, seed)


def by_definition(given: Inputs) -> torch.Tensor:
    """One query at a time, one head at a time."""
    q, k, v = given.query.double(), given.key.double(), given.value.double()
    mask = None if given.mask is None else reference.full(given.mask, given)
    out = torch.zeros(q.shape, dtype=torch.float64)
    for b, row, head in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        shared = head * k.shape[2] // q.shape[2]
        seen = torch.ones(k.shape[1], dtype=torch.bool) if mask is None else mask[b, head, row]
        if seen.any():
            scores = (k[b, seen, shared] @ q[b, row, head]) / q.shape[-1] ** 0.5
            out[b, row, head] = scores.softmax(0) @ v[b, seen, shared]
    return out


@pytest.mark.parametrize(
    "case",
    [
        Case(9, 9, 2, 16),
        Case(7, 11, 4, 16, batch=2, key_heads=2, mask="empty-rows", values="peaked"),
        Case(9, 13, 6, 8, key_heads=1, mask="shared", values="biased"),
        Case(9, 9, 2, 16, batch=2, mask="keys", views="fused"),
    ],
    ids=str,
)
def test_the_reference_is_attention_by_its_definition(case: Case) -> None:
    given = inputs(case)
    torch.testing.assert_close(reference.attention(given), by_definition(given), rtol=1e-12, atol=1e-12)


def test_the_reference_in_pieces_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(Case(40, 23, 4, 16, batch=2, key_heads=2, mask="empty-rows"))
    whole = reference.attention(given)
    monkeypatch.setattr(reference, "SCORE_BYTES", 8 * 2 * 4 * 23 * 3)  # three rows at a time
    torch.testing.assert_close(reference.attention(given), whole, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("views", [views for views in VIEWS if views])
def test_views_hold_the_same_values_in_another_layout(views: str) -> None:
    plain = Case(17, 17, 3, 16)
    one, other = inputs(plain), inputs(attrs.evolve(plain, views=views))
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("query", "key", "value"))
    assert not other.query.is_contiguous()


@pytest.mark.parametrize("mask", [mask for mask in MASKS if mask])
def test_a_mask_leaves_the_last_key_out_and_only_the_named_rows_empty(mask: str) -> None:
    given = inputs(Case(30, 20, 2, 16, batch=2, mask=mask))
    seen = reference.full(given.mask, given) if given.mask is not None else torch.ones(())
    assert seen.shape == (2, 2, 30, 20) and not seen[..., -1].any()
    assert bool((~seen.any(-1)).any()) == (mask == "empty-rows")


def test_a_case_is_the_same_for_the_same_seed_only() -> None:
    case = Case(17, 17, 3, 16)
    assert torch.equal(inputs(case, seed=3).query, inputs(case, seed=3).query)
    assert not torch.equal(inputs(case, seed=3).query, inputs(case, seed=4).query)


def test_peaked_and_biased_values_are_what_they_are_called() -> None:
    peaked = inputs(Case(20, 20, 2, 64, values="peaked"))
    scores = torch.einsum("bqhd,bkhd->bhqk", peaked.query, peaked.key) / 8
    assert (scores.argmax(-1) == torch.arange(20)).all()
    biased = inputs(Case(200, 200, 2, 64, values="biased"))
    assert biased.key.mean(1).abs().mean() > 10 * biased.query.mean(1).abs().mean()


def test_every_trait_is_among_the_first_ten_and_no_large_case_on_a_cpu() -> None:
    first = list(schedule(10, CPU))
    assert {case.mask for case in first} == {*MASKS} and {case.values for case in first} == {*VALUES}
    assert any(case.key_heads for case in first) and any(case.views for case in first)
    assert {case.head_dim for case in first} == {64, 80, 96, 128}
    many = list(schedule(2 * len(SMALL) + 1, CPU))
    assert many == [*SMALL, *SMALL, SMALL[0]]


def test_large_cases_come_once_where_there_is_an_accelerator() -> None:
    many = list(schedule(100, torch.device("cuda")))
    assert len(many) == 100 and [case for case in many if case in LARGE] == [*LARGE]


def test_errors_are_those_of_the_whole_output() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = errors(torch.tensor([3.0, 4.5]), exact)
    assert (found.relative_l2, found.max_abs) == (pytest.approx(0.1), pytest.approx(0.5))
    assert found.cosine == pytest.approx(27 / (5 * 29.25**0.5))


def test_an_output_of_another_dtype_or_shape_is_a_problem() -> None:
    given = inputs(Case(5, 5, 2, 16))
    assert problem(given, given.query) == ""
    assert "float64" in problem(given, given.query.double())
    assert "[1, 4, 2, 16]" in problem(given, given.query[:, 1:])
