"""The rule in plain numbers, against the reference vectors."""

from __future__ import annotations

import math

import pytest
from magcache_vectors import BRANCHES, arrays, label, vector

from wf_plugin_cache_magcache.rule import decide, first_free, interpolated, nearest_indices, split

SCHEDULES = vector("mag.sched")["expected"]
TWO = vector("mag.wan22")["expected"]
MAPS = vector("mag.interp")["expected"]["maps"]


def computed(verdicts):
    return [index for index, verdict in enumerate(verdicts) if verdict.compute]


def schedule(ratios, options, **more):
    start = first_free(len(ratios), options["retention_ratio"])
    return computed(decide(ratios, start, options["threshold"], options["max_skip"], **more))


def test_the_trace_that_can_be_checked_by_hand():
    """mag.hand: multiply, count, add the error, compare, in that order."""
    inputs, expected = vector("mag.hand")["inputs"], vector("mag.hand")["expected"]
    verdicts = decide(inputs["ratios"], inputs["start_step"], inputs["thresh"], inputs["K"])
    assert computed(verdicts) == expected["compute"]
    for row in expected["trace"]:
        verdict = verdicts[row["step"]]
        assert verdict.error == pytest.approx(row["err"], abs=1e-9)
        assert verdict.compute != row["skip"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_full_schedules(name):
    """mag.sched. Two of the models compare with <=; on their arrays it makes no difference."""
    array, options = label(name)
    row, ratios = SCHEDULES[name], arrays(array)
    for branch in BRANCHES:
        wanted = row.get(f"{branch}_compute", row.get("compute"))
        if "diffusers" in name:  # it rounds the start up at a half
            got = computed(
                decide(ratios[branch], row["start_step"], options["threshold"], options["max_skip"])
            )
        else:
            assert first_free(row["N"], options["retention_ratio"]) == row["start_step"]
            got = schedule(ratios[branch], options)
        assert got == wanted


@pytest.mark.parametrize("name", MAPS)
def test_the_nearest_step_is_taken(name):
    """mag.interp, a map of indices."""
    measured, wanted = map(int, name.split("->"))
    assert list(nearest_indices(measured, wanted)) == MAPS[name]


def test_halves_go_to_the_even_index():
    expected = vector("mag.interp")["expected"]
    assert list(nearest_indices(50, 99)[:8]) == expected["half_even_50_to_99_first8"]
    assert list(nearest_indices(11, 21)) == expected["half_even_11_to_21"]


@pytest.mark.parametrize("steps", ["20", "30", "40"])
def test_schedules_at_another_number_of_steps(steps):
    """mag.interp.sched."""
    row = vector("mag.interp.sched")["expected"][steps]
    options = {"threshold": 0.12, "max_skip": 2, "retention_ratio": 0.2}
    for branch in BRANCHES:
        ratios = interpolated(arrays("wan2.1-t2v-1.3b")[branch], int(steps))
        if branch == "cond":
            assert list(ratios) == row["ratios_cond"]
        assert first_free(int(steps), 0.2) == row["start_step"]
        assert schedule(ratios, options) == row[f"{branch}_compute"]


@pytest.mark.parametrize("name", TWO)
def test_each_expert_decides_about_its_own_steps(name):
    """mag.wan22, the recommended rule."""
    array, options = label(name)
    row = TWO[name]
    high = row["high_noise_steps"]
    for branch in BRANCHES:
        first, second = split(arrays(array)[branch], high)
        assert second[0] == 1.0 and len(first) + len(second) == row["N"]
        head = list(range(high)) if row["mode"] == "i2v" else schedule(first, options)
        got = head + [high + index for index in schedule(second, options)]
        assert got == row[f"recommended_{branch}"]


def test_both_branches_start_at_the_same_step():
    """mag.retention.odd counts calls, and starts the branches apart where their number is odd; this rule does not."""
    for row in vector("mag.retention.odd")["expected"]["first_gated"]:
        ours = first_free(row["N"], row["r"])
        if row["cond_step"] == row["uncond_step"]:
            assert ours == row["cond_step"]
        else:
            assert ours in (row["cond_step"], row["uncond_step"])


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7])
def test_one_step_at_least_is_computed_first_whatever_the_share(steps):
    assert first_free(steps, 0.0) == 1
    assert first_free(steps, 1.0) == steps


def test_a_threshold_of_zero_skips_nothing():
    assert computed(decide([1.0] * 6, 1, 0.0, 3)) == list(range(6))


def test_without_a_threshold_only_the_longest_run_cuts():
    verdicts = decide([1.0, *[0.9] * 8], 1, math.inf, 3)
    assert computed(verdicts) == [0, 4, 8]
    assert [verdicts[i].reason for i in (0, 1, 4)] == ["first-steps", "below-threshold", "max-skip"]


def test_a_forced_step_starts_anew():
    ratios = [1.0, *[0.98] * 7]
    assert computed(decide(ratios, 1, 0.1, 9)) == [0, 3, 6]
    verdicts = decide(ratios, 1, 0.1, 9, forced={2})
    assert computed(verdicts) == [0, 2, 5] and verdicts[2].reason == "forced"


def test_the_last_step_may_be_forced():
    assert computed(decide([1.0, *[0.999] * 3], 1, 1.0, 9)) == [0]
    assert computed(decide([1.0, *[0.999] * 3], 1, 1.0, 9, last=1)) == [0, 3]


def test_an_error_that_is_no_number_computes():
    assert computed(decide([1.0, math.nan, 0.99], 1, 1.0, 5)) == [0, 1]


@pytest.mark.parametrize(
    ("steps", "threshold", "max_skip", "skipped"),
    [(30, 0.04, 2, 7), (30, 0.12, 2, 13), (30, 0.24, 4, 17), (50, 0.12, 2, 22), (50, 0.24, 4, 28)],
)
def test_the_schedules_whose_quality_the_readme_tells(steps, threshold, max_skip, skipped):
    for branch in BRANCHES:
        ratios = interpolated(arrays("tiny-wan")[branch], steps)
        options = {"threshold": threshold, "max_skip": max_skip, "retention_ratio": 0.2}
        assert steps - len(schedule(ratios, options)) == skipped
