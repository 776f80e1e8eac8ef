"""The solver against two others: every assignment in turn for few variables, and python-sat for many."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pysat.solvers import Minisat22

from wf_core.resolving.solver import Clause, Lazy, Model, conflicts, explain, prefer, satisfiable

Problem = tuple[list[Clause], int]


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Some problems here are harder than any request, and take longer than a request may."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wf_core.resolving.solver.MOST_STEPS", 10**9)
        yield


def problems(most: int = 12, longest: int = 4) -> st.SearchStrategy[Problem]:
    """Clauses over the variables 1..n, n <= ``most``; some hold always, some say a literal twice."""

    def over(n: int) -> st.SearchStrategy[Problem]:
        literal = st.integers(1, n).flatmap(lambda v: st.sampled_from((v, -v)))
        clause = st.lists(literal, min_size=1, max_size=longest).map(tuple)
        return st.tuples(st.lists(clause, max_size=4 * n), st.just(n))

    return st.integers(1, most).flatmap(over)


def everywhere(n: int) -> Iterator[Model]:
    """Every assignment of n variables, false before true, the first variable deciding first."""
    for values in product((False, True), repeat=n):
        yield frozenset(v if value else -v for v, value in enumerate(values, 1))


def holds(clauses: Iterable[Clause], model: Model) -> bool:
    return all(any(literal in model for literal in clause) for clause in clauses)


def models(clauses: Iterable[Clause], n: int) -> list[Model]:
    clauses = list(clauses)
    return [model for model in everywhere(n) if holds(clauses, model)]


def variables(clauses: Iterable[Clause]) -> set[int]:
    return {abs(literal) for clause in clauses for literal in clause}


def at_most(count: int, literals: Sequence[int]) -> Lazy:
    """The constraint that at most ``count`` of the literals hold, given one clause at a time."""

    def broken(model: Model) -> Clause | None:
        true = [literal for literal in literals if literal in model]
        return tuple(-literal for literal in true[: count + 1]) if len(true) > count else None

    return broken


def at_most_written(count: int, literals: Sequence[int]) -> list[Clause]:
    return [tuple(-literal for literal in chosen) for chosen in combinations(literals, count + 1)]


# --- against every assignment in turn ------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None, derandomize=True)
@given(problems())
def test_the_verdict_is_that_of_trying_everything_and_a_model_holds(problem: Problem) -> None:
    clauses, n = problem
    model = satisfiable(clauses)
    possible = models(clauses, n)
    assert (model is not None) == bool(possible)
    if model is not None:
        assert holds(clauses, model)
        assert {abs(literal) for literal in model} == variables(clauses)
        assert not any(-literal in model for literal in model)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(problems(8), st.data())
def test_of_several_models_the_one_with_variables_false_where_possible_is_given(
    problem: Problem, data: st.DataObject
) -> None:
    clauses, n = problem
    assumed = data.draw(st.lists(st.integers(1, n).flatmap(lambda v: st.sampled_from((v, -v))), max_size=3))
    possible = models([*clauses, *((literal,) for literal in assumed)], n)
    given_model = satisfiable(clauses, assumed)
    named = variables(clauses) | set(map(abs, assumed))
    first = {literal for literal in possible[0] if abs(literal) in named} if possible else None
    assert given_model == first


@settings(max_examples=200, deadline=None, derandomize=True)
@given(problems(8), st.data())
def test_prefer_gives_the_lexicographically_best(problem: Problem, data: st.DataObject) -> None:
    clauses, n = problem
    order = data.draw(st.lists(st.integers(1, n).flatmap(lambda v: st.sampled_from((v, -v))), max_size=n))
    assumed = data.draw(st.lists(st.integers(1, n).flatmap(lambda v: st.sampled_from((v, -v))), max_size=2))
    possible = models([*clauses, *((literal,) for literal in assumed)], n)
    found = prefer(clauses, order, assumed)
    assert (found is None) == (not possible)
    if found is not None:
        assert holds([*clauses, *((literal,) for literal in assumed)], found)
        best = max([literal in model for literal in order] for model in possible)
        assert [literal in found for literal in order] == best


@settings(max_examples=200, deadline=None, derandomize=True)
@given(problems(6, 3), problems(6, 3))
def test_a_conflict_is_inconsistent_minimal_and_the_one_that_stands_earliest(
    first: Problem, second: Problem
) -> None:
    hard, soft = first[0][:6], second[0][:9]
    n = max(first[1], second[1])

    def consistent(indices: Iterable[int]) -> bool:
        return bool(models([*hard, *(soft[index] for index in indices)], n))

    found = explain(hard, soft)
    assert (found is None) == consistent(range(len(soft)))
    if found is None:
        return
    assert not consistent(found)
    assert all(consistent(index for index in found if index != left_out) for left_out in found)
    inconsistent = [
        subset
        for size in range(len(soft) + 1)
        for subset in combinations(range(len(soft)), size)
        if not consistent(subset)
    ]
    minimal = [subset for subset in inconsistent if not any({*other} < {*subset} for other in inconsistent)]
    # earliest: the last members of two sets are compared first
    assert found == min(minimal, key=lambda subset: sorted(subset, reverse=True))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(problems(6, 3), problems(6, 2), st.sets(st.integers(0, 20)), st.integers(0, 4))
def test_conflicts_share_nothing_removable_and_stop_only_when_none_is_left(
    first: Problem, second: Problem, kept: set[int], limit: int
) -> None:
    hard, soft = first[0][:4], second[0]
    found = conflicts(hard, soft, lambda index: index not in kept, limit)
    assert len(found) <= limit
    n = max(first[1], second[1])
    for conflict in found:
        assert not models([*hard, *(soft[index] for index in conflict)], n)
        for left_out in conflict:
            rest = [soft[index] for index in conflict if index != left_out]
            assert models([*hard, *rest], n)
    taken = [{*conflict} - kept for conflict in found]
    assert all(not one & other for one, other in combinations(taken, 2))
    if found and len(found) < limit and all(taken):
        gone = set().union(*taken)
        assert models([*hard, *(clause for index, clause in enumerate(soft) if index not in gone)], n)
    if not found and limit:
        assert models([*hard, *soft], n) or not models(hard, n)


# --- the order of the clauses ---------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True)
@given(problems(), st.randoms(use_true_random=False))
def test_the_same_clauses_in_any_order_give_the_same_answer(problem: Problem, shuffle: random.Random) -> None:
    clauses, n = problem
    mixed = [tuple(shuffle.sample(clause, len(clause))) for clause in clauses]
    shuffle.shuffle(mixed)
    order = list(range(1, n + 1))
    lazy = at_most(2, order)
    assert satisfiable(clauses) == satisfiable(mixed)
    assert prefer(clauses, order) == prefer(mixed, order)
    assert prefer(clauses, order, lazy=lazy) == prefer(mixed, order, lazy=lazy)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problems(6, 3), problems(6, 3), st.randoms(use_true_random=False))
def test_a_conflict_does_not_depend_on_the_order_of_what_is_hard(
    first: Problem, second: Problem, shuffle: random.Random
) -> None:
    hard, soft = first[0], second[0]
    assert explain(hard, soft) == explain(shuffle.sample(hard, len(hard)), soft)


# --- constraints given lazily ---------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True)
@given(problems(8, 3), st.integers(0, 4))
def test_a_constraint_given_lazily_is_the_same_written_out(problem: Problem, count: int) -> None:
    clauses, n = problem
    order = list(range(1, n + 1))
    lazy, written = at_most(count, order), at_most_written(count, order)
    with_all = [*clauses, *((v, -v) for v in order)]  # so that both know every variable
    assert satisfiable(with_all, lazy=lazy) == satisfiable([*with_all, *written])
    assert prefer(with_all, order, lazy=lazy) == prefer([*with_all, *written], order)
    assert explain(written, clauses) == explain([], clauses, lazy)


def test_a_lazy_constraint_that_is_never_broken_is_asked_once_for_each_model() -> None:
    asked: list[Model] = []

    def never(model: Model) -> None:
        asked.append(model)

    assert satisfiable([(1,), (2, 3)], lazy=never) == {1, -2, 3}
    assert asked == [frozenset({1, -2, 3})]


# --- what is at the edge --------------------------------------------------------------------------------------------


def test_nothing_at_all() -> None:
    assert satisfiable([]) == frozenset()
    assert prefer([], [2, -1]) == {2, -1}
    assert explain([], []) is None
    assert conflicts([], [], lambda _: True) == ()


def test_an_empty_clause_never_holds() -> None:
    assert satisfiable([(1,), ()]) is None
    assert explain([()], [(1,)]) == ()
    assert explain([(1,)], [(2,), ()]) == (1,)


def test_assumptions_that_contradict_each_other_or_a_clause() -> None:
    assert satisfiable([], [1, -1]) is None
    assert satisfiable([(-1,)], [1]) is None
    assert satisfiable([(-1, 2)], [1]) == {1, 2}


def test_a_clause_that_always_holds_still_names_its_variable() -> None:
    assert satisfiable([(1, -1)]) == {-1}


# --- against python-sat ---------------------------------------------------------------------------------------------


def like_rules(seed: int, n: int = 50) -> list[Clause]:
    """Clauses as requests give them: demands of 1 to 3 candidates, those ruled out, and pairs that clash."""
    draw = random.Random(seed)
    numbers = list(range(1, n + 1))
    clauses: list[Clause] = []
    at = 0
    while at < n:
        group = numbers[at : at + draw.choice((1, 2, 2, 3, 3, 3))]
        at += len(group)
        if draw.random() < 0.75:
            clauses.append(tuple(group))
        clauses += [(-one, -other) for one, other in combinations(group, 2)]
    clauses += [(-draw.choice(numbers),) for _ in range(draw.randrange(6))]
    clauses += [tuple(-v for v in draw.sample(numbers, 2)) for _ in range(draw.randrange(20, 90))]
    clauses += [
        tuple(draw.choice((1, -1)) * v for v in draw.sample(numbers, 3)) for _ in range(draw.randrange(15))
    ]
    draw.shuffle(clauses)
    return clauses


def by_pysat(clauses: Iterable[Clause], assumed: Sequence[int] = ()) -> Model | None:
    with Minisat22(bootstrap_with=[list(clause) for clause in clauses]) as solver:
        return frozenset(solver.get_model()) if solver.solve(assumptions=list(assumed)) else None


def best_by_pysat(clauses: list[Clause], order: Sequence[int]) -> list[int] | None:
    """The literals of ``order`` that hold, decided one after another."""
    held: list[int] = []
    if by_pysat(clauses) is None:
        return None
    for literal in order:
        held.append(literal if by_pysat(clauses, [*held, literal]) else -literal)
    return [literal for literal in held if literal in order]


VERDICTS = [by_pysat(like_rules(seed)) is not None for seed in range(200)]


def test_the_problems_are_a_fair_mixture() -> None:
    assert 50 <= sum(VERDICTS) <= 150


@pytest.mark.parametrize("part", range(4))
def test_fifty_variables_have_the_verdict_of_python_sat(part: int) -> None:
    for seed in range(part, 200, 4):
        clauses = like_rules(seed)
        model = satisfiable(clauses)
        assert (model is not None) == VERDICTS[seed]
        assert model is None or holds(clauses, model)


def test_the_preferred_of_fifty_variables_is_that_of_python_sat() -> None:
    for seed in range(0, 200, 5):
        clauses = like_rules(seed)
        order = random.Random(seed).sample(range(1, 51), 50)
        found = prefer(clauses, order)
        wanted = best_by_pysat(clauses, order)
        assert (None if found is None else [v for v in order if v in found]) == wanted


def test_a_conflict_of_fifty_variables_is_minimal_by_python_sat() -> None:
    seen = 0
    for seed in [seed for seed in range(200) if not VERDICTS[seed]][:30]:
        clauses = like_rules(seed)
        hard = [clause for clause in clauses if any(literal > 0 for literal in clause)]
        soft = [clause for clause in clauses if clause not in hard]
        found = explain(hard, soft)
        assert (found is None) == (by_pysat(clauses) is not None)
        if found:
            seen += 1
            assert by_pysat([*hard, *(soft[index] for index in found)]) is None
            for left_out in found:
                rest = [soft[index] for index in found if index != left_out]
                assert by_pysat([*hard, *rest]) is not None
    assert seen >= 10


def test_a_bound_over_fifty_variables_given_lazily_is_the_same_written_out() -> None:
    for seed in range(0, 200, 10):
        clauses = like_rules(seed)
        picked = random.Random(seed).sample(range(1, 51), 12)
        count = 1 + seed % 5
        found = satisfiable(clauses, lazy=at_most(count, picked))
        wanted = by_pysat([*clauses, *at_most_written(count, picked)])
        assert (found is not None) == (wanted is not None)
        assert found is None or (holds(clauses, found) and sum(v in found for v in picked) <= count)
