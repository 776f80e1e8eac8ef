"""The steps that are computed, and the numbers in between: the reference vectors, by the rule and by the techniques."""

from __future__ import annotations

import math

import pytest
import torch
from taylor_fakes import Driver, vector

from wf_plugin_cache_taylorseer.blocks import BlockTaylorSeer
from wf_plugin_cache_taylorseer.rule import in_pattern, on_interval
from wf_plugin_cache_taylorseer.stack import TaylorSeer

SERIES = {"2+0.5*s": lambda s: 2 + 0.5 * s, "1-0.3*s+0.05*s*s": lambda s: 1 - 0.3 * s + 0.05 * s * s}
CASES = [("taylor.linear", 0), ("taylor.linear", 1), *(("taylor.quadratic", order) for order in range(3))]


def test_the_interval_counts_from_step_zero():
    assert [index for index in range(14) if on_interval(index, 4)] == [0, 4, 8, 12]
    assert all(on_interval(index, 1) for index in range(5))


@pytest.mark.parametrize("total", sorted(vector("blocktaylor.pattern")["expected"].keys() - {"note"}))
def test_the_pattern_is_repeated_and_cut(total):
    case = vector("blocktaylor.pattern")
    expected = case["expected"][total]
    assert [i for i in range(int(total)) if in_pattern(i, case["inputs"]["pattern"])] == expected
    player = Driver(BlockTaylorSeer(tuple(case["inputs"]["pattern"]), last=0))
    run = player.view(int(total))
    player.begin(run)
    assert player.play(run)["cond"] == expected


def test_a_pattern_that_begins_with_a_skip_has_its_first_step_computed_all_the_same():
    player = Driver(BlockTaylorSeer((False, True, False), last=1))
    run = player.view(9)
    player.begin(run)
    assert player.play(run)["cond"] == [0, 1, 4, 7, 8]
    assert [player.reasons()[index] for index in (0, 1, 2, 8)] == [
        "nothing-cached",
        "pattern",
        "between",
        "last-steps",
    ]


def ladder(samples, order, step):
    """The continuation at ``step`` of ``samples``, pairs of step and number, by floats alone."""
    factors, at = [samples[0][1]], samples[0][0]
    for index, value in samples[1:]:
        fresh = [value]
        for older in factors[:order]:
            fresh.append((fresh[-1] - older) / (index - at))
        factors, at = fresh, index
    return sum(factor * (step - at) ** k / math.factorial(k) for k, factor in enumerate(factors))


def through_the_stack(series, total, technique):
    """What each step adds to hidden states of zeros, when the stack's residual is ``series(step)``."""
    player = Driver(technique, blocks=1)
    player.output = lambda index, role, y: torch.full_like(y, series(index) if role == "self" else 0.0)
    player.begin(player.view(total))
    zeros = torch.zeros(1, 2, 4, dtype=torch.float64)
    added = [player.call(index, zeros, total=total) for index in range(total)]
    assert all(tensor.dtype == torch.float64 for tensor in added)
    return [float(tensor.flatten()[0]) for tensor in added], player


@pytest.mark.parametrize(("name", "order"), CASES)
def test_the_continuation_of_the_stack(name, order):
    case = vector(name)
    total = case["inputs"]["N"]
    series = SERIES[case["inputs"]["r"]]
    expected = case["expected"][f"order{order}"]
    got, player = through_the_stack(series, total, TaylorSeer(4, order, first=1, last=1))
    computed = player.computed()
    assert computed == [step for step in range(total) if step % 4 == 0 or step == total - 1]
    assert got == pytest.approx(expected, abs=case["tolerance"])
    for step in set(range(total)) - set(computed):
        samples = [(index, series(index)) for index in computed if index < step]
        assert ladder(samples, order, step) == pytest.approx(expected[step], abs=case["tolerance"])


@pytest.mark.parametrize("order", range(4))
def test_uneven_gaps_up_to_order_three(order):
    series = [1.0, 1.2, 0.7, 2.0, 2.0, 3.5, -1.0, 0.5, 0.25, 2.0, 1.0, 4.0]
    got, player = through_the_stack(series.__getitem__, 12, TaylorSeer(3, order, first=2, last=2))
    assert player.computed() == [0, 1, 3, 6, 9, 10, 11]
    for step in (2, 4, 5, 7, 8):
        samples = [(index, series[index]) for index in player.computed() if index < step]
        assert got[step] == pytest.approx(ladder(samples, order, step), abs=1e-9)


def test_the_slope_is_known_from_the_second_computed_step_on():
    """cache-dit begins one step later (taylor.cachedit); from the third computed step on both agree."""
    case = vector("taylor.cachedit")
    dense = {int(step): value for step, value in case["inputs"]["dense"].items()}
    total, theirs = case["inputs"]["N"], case["expected"]["series"]
    got, player = through_the_stack(dense.get, total, TaylorSeer(4, 1, first=2, last=0))
    assert player.computed() == sorted(dense)
    assert got[2:4] == pytest.approx([1.4, 1.6])
    assert got[4:] == pytest.approx(theirs[4:], abs=case["tolerance"])


def test_one_block_adds_its_continued_branches_with_the_gates_of_the_current_step():
    case = vector("blocktaylor.block")
    outputs = {role: case["inputs"][name] for role, name in (("self", "sa"), ("cross", "ca"), ("ffn", "ff"))}
    gates = {"self": case["inputs"]["gate"], "ffn": case["inputs"]["cgate"]}
    player = Driver(BlockTaylorSeer((True, False, False, False)), blocks=1)
    player.output = lambda index, role, y: torch.full_like(y, outputs[role][str(index)])
    player.gate = lambda index, role: gates.get(role, {}).get(str(index), 1.0)
    player.begin(player.view(9))
    ten = torch.full((1, 2, 4), 10.0, dtype=torch.float64)
    got = {index: float(player.call(index, ten, total=9).max()) for index in range(8)}
    assert player.computed() == [0, 4]
    expected = {int(step): value for step, value in case["expected"]["x_out"].items()}
    assert {step: got[step] for step in expected} == pytest.approx(expected, abs=case["tolerance"])
