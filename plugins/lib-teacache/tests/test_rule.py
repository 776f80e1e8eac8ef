"""The rule as functions, against the published vectors and by hand."""

from __future__ import annotations

import math

import pytest
from teacache_vectors import SCHEDULES, coefficients, synthetic, vector

from wf_core.api import Window
from wf_lib_teacache.rule import Accumulator, first_fault, polynomial, schedule

SYNTHETIC = synthetic()
LINE = (1.0, 0.0)


def computed(decisions):
    return [index for index, decision in enumerate(decisions) if decision.compute]


def test_polynomial_of_every_preset_on_the_grid():
    case = vector("tea.poly")
    for preset, values in case["expected"].items():
        found = [polynomial(coefficients(preset), d) for d in case["inputs"]["d"]]
        assert found == pytest.approx(values, abs=case["tolerance"]), preset


def test_polynomial_of_any_degree():
    assert polynomial((7.0,), 0.3) == 7.0
    assert polynomial((2.0, 1.0), 0.5) == 2.0
    assert polynomial((1.0, 0.0, 0.0, 0.0, 0.0, 1.0), 2.0) == 33.0


@pytest.mark.parametrize("name", [*SCHEDULES, "tea.domain.failure"])
def test_schedule_with_every_intermediate_value(name):
    case = vector(name)
    given, expected = case["inputs"], case["expected"]
    decisions = schedule(
        given["d"],
        coefficients(given["preset"]),
        given["thresh"],
        given["retain_first"],
        given["retain_last"],
    )
    assert computed(decisions) == expected["compute_steps"]
    left = [decision.accumulator for decision in decisions]
    assert left == pytest.approx(expected["accumulator_after_step"], abs=case["tolerance"])
    estimates = expected.get("p_d") or [
        expected["p(0.2)"] if d == 0.2 else polynomial(coefficients(given["preset"]), d) for d in given["d"]
    ]
    asked = [index for index, decision in enumerate(decisions) if decision.estimate is not None]
    assert asked == list(range(given["retain_first"], len(given["d"]) - given["retain_last"]))
    assert [decisions[index].estimate for index in asked] == pytest.approx(
        [estimates[index] for index in asked], abs=case["tolerance"]
    )


@pytest.mark.parametrize("preset", SYNTHETIC)
def test_full_length_schedule(preset):
    row = SYNTHETIC[preset]
    decisions = schedule(
        row["d"], coefficients(preset), row["thresh"], row["retain_first"], row["retain_last"]
    )
    assert computed(decisions) == row["compute_steps"]
    assert len(computed(decisions)) == row["computed"]


def test_forced_steps_are_the_solver_steps_of_the_forced_calls():
    given, expected = vector("tea.counter")["inputs"], vector("tea.counter")["expected"]
    total = given["N"]
    for mode, first, last in (("no_ret", 1, 1), ("ret", 5, 0)):
        steps = [i for i in range(total) if Window(first, last).reason(i, total)]
        assert steps == expected[f"{mode}_forced_steps"]
        assert [2 * i + b for i in steps for b in (0, 1)] == expected[f"{mode}_forced_calls"]


def test_branches_with_their_own_distances_may_disagree():
    given, expected = vector("tea.two_branch")["inputs"], vector("tea.two_branch")["expected"]
    for branch in ("cond", "uncond"):
        decisions = schedule(given[f"d_{branch}"], coefficients(given["preset"]), given["thresh"], 1, 1)
        assert computed(decisions) == expected[f"{branch}_compute"]


def test_a_step_computed_for_another_reason_starts_the_sum_anew():
    given, expected = vector("tea.force")["inputs"], vector("tea.force")["expected"]
    args = given["d"], coefficients(given["preset"]), given["thresh"], 1, 1
    assert computed(schedule(*args)) == expected["compute_without_force"]
    forced = schedule(*args, forced=given["forced"])
    assert computed(forced) == expected["compute_with_force"]
    assert (forced[2].reason, forced[3].anchor) == ("forced", 2)
    assert forced[3].estimate == pytest.approx(expected["p(0.06)"], abs=1e-9)


def test_the_threshold_itself_is_computed():
    skipped = schedule([0, 0.25, 0.25, 0], LINE, math.nextafter(0.5, 1), 1, 1)
    reached = schedule([0, 0.25, 0.25, 0], LINE, 0.5, 1, 1)
    assert (computed(skipped), computed(reached)) == ([0, 3], [0, 2, 3])
    assert [decision.reason for decision in reached] == [
        "first-steps",
        "below-threshold",
        "threshold",
        "last-steps",
    ]


def test_anchor_is_the_computed_step_whose_residual_is_used():
    decisions = schedule([0, 0.2, 0.2, 0.2, 0.2, 0.2], LINE, 0.5, 1, 1)
    assert [decision.anchor for decision in decisions] == [0, 0, 0, 3, 3, 5]


def test_a_step_without_a_previous_one_is_an_experts_first():
    decisions = schedule([0, 0.1, 0.1, None, 0.1, 0.1], LINE, 1.0, 0, 0)
    assert computed(decisions) == [0, 3]
    assert (decisions[0].reason, decisions[3].reason) == ("nothing-cached", "expert-start")
    assert decisions[4].accumulator == pytest.approx(0.1)


def test_max_skip_cuts_longer_runs_and_starts_anew():
    decisions = schedule([0] + [0.01] * 9, LINE, 1.0, 1, 0, max_skip=3)
    assert computed(decisions) == [0, 4, 8]
    assert [decisions[i].reason for i in (4, 8)] == ["max-skip", "max-skip"]
    assert decisions[5].accumulator == pytest.approx(0.01)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_sum_that_is_not_finite_is_computed_and_forgotten(bad):
    decisions = schedule([0, 0.1, bad, 0.1, 0.1, 0], LINE, 0.5, 1, 1)
    assert computed(decisions) == [0, 2, 5]
    assert decisions[2].reason == "not-finite"
    assert decisions[3].accumulator == pytest.approx(0.1)
    assert first_fault(decisions, 0.5) == 2


def test_leaving_the_domain_is_found_at_its_first_step():
    given = vector("tea.domain.failure")["inputs"]
    args = given["d"], coefficients(given["preset"])
    assert first_fault(schedule(*args, given["thresh"], 5, 0), given["thresh"]) == 5
    assert first_fault(schedule(*args, 60.0, 5, 0), 60.0) is None
    for name in SCHEDULES:
        case = vector(name)["inputs"]
        legal = schedule(
            case["d"],
            coefficients(case["preset"]),
            case["thresh"],
            case["retain_first"],
            case["retain_last"],
        )
        assert first_fault(legal, case["thresh"]) is None


def test_exactly_minus_threshold_is_still_inside():
    decisions = schedule([0, 0.5, 0.5, 0], (0.0, -0.25), 0.25, 1, 1)
    assert decisions[1].compared == -0.25
    assert first_fault(decisions[:2], 0.25) is None
    assert first_fault(decisions, 0.25) == 2


def test_a_run_of_one_step_is_computed():
    assert computed(schedule([0.0], LINE, 1.0, 0, 0)) == [0]
    assert schedule([], LINE, 1.0, 1, 1) == ()


def test_accumulator_is_neither_clamped_nor_absolute():
    accumulator = Accumulator((1.0, -0.5), 0.2)
    assert accumulator.offer(0.1) == (False, "below-threshold", pytest.approx(-0.4))
    assert accumulator.offer(0.2) == (False, "below-threshold", pytest.approx(-0.7))
    assert accumulator.value == pytest.approx(-0.7)
