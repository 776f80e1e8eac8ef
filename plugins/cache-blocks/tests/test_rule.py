"""The rules, numbers only: reference vectors, ties, and the limit on skips in a row."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from blocks_by_hand import defaults, vector

from wf_plugin_cache_blocks.rule import Parts, Rule, Verdict, expected, reason_of
from wf_plugin_cache_blocks.settings import Settings


def settings(feature="firstblock", **options):
    return Settings.of(feature, {**defaults(feature), "residual_diff_threshold": 0.02, **options})


def play(values, settings):
    """The computed steps of a run whose first-block residuals are these numbers."""
    rule, reference, computed = settings.rule(), None, []
    for step, value in enumerate(values):
        compute = reference is None or rule.judge(abs(value - reference) / abs(reference)).compute
        rule.took(compute)
        if compute:
            computed.append(step)
        if settings.refreshes(compute):
            reference = value
    return computed


@pytest.mark.parametrize("reference", ["computed", "previous"])
def test_first_block_schedules(reference):
    case = vector("fb.sched")
    own = settings(reference=reference, residual_diff_threshold=case["inputs"]["threshold"])
    assert play(case["inputs"]["first_block_residual"], own) == case["expected"][f"{reference}_compute"]


def test_a_tie_is_computed():
    case = vector("fb.boundary")
    difference, threshold = case["inputs"]["diff"], case["inputs"]["thr"]
    assert Rule(threshold).judge(difference) == Verdict(True, "threshold", difference)
    assert Rule(threshold).judge(math.nextafter(difference, 0)) == Verdict(
        False, "below-threshold", math.nextafter(difference, 0)
    )
    assert "cache-dit" in case["expected"]["compute_at_a_tie"]


def test_dual_partition():
    for layers, row in vector("dual.partition")["expected"].items():
        own = settings("dualblock").parts
        assert own == Parts(5, 5)
        parts = [own.of(index, int(layers)) for index in range(int(layers))]
        for name in ("front", "middle", "tail"):
            first, last = row[name]
            assert [i for i, part in enumerate(parts) if part == name] == list(range(first, last + 1))
        assert list(own.middle(int(layers))) == [i for i, part in enumerate(parts) if part == "middle"]
        assert len(own.middle(int(layers))) == row["cached_blocks"]


def test_parts_of_a_stack_whose_size_is_not_known_have_no_tail():
    assert [Parts(1, 1).of(index, 0) for index in range(3)] == ["front", "middle", "middle"]
    assert len(Parts(2, 2).middle(3)) == 0


def test_per_block_schedule():
    """dyn: three scalar blocks, each compared with its input one step before."""
    case = vector("dyn")
    inputs = case["inputs"]
    rules = [Rule(inputs["threshold"]) for _ in inputs["f"]]
    former, kept = [None] * 3, [0.0] * 3
    for step, x in enumerate(inputs["x_in"]):
        computed = []
        for k, (constant, slope) in enumerate(inputs["f"]):
            compute = former[k] is None or rules[k].judge(abs(x - former[k]) / abs(former[k])).compute
            former[k] = x
            kept[k] = constant + slope * step if compute else kept[k]
            computed.append(compute)
            x += kept[k]
        assert computed == case["expected"]["computed"][step]
        assert x == pytest.approx(case["expected"]["x_out"][step], abs=case["tolerance"])


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_run_of_skips_is_longer_than_the_limit(limit):
    """cache-dit#1114: after a step that was computed for another reason two in a row did occur."""
    rule, runs, length = Rule(1.0, limit), [], 0
    for step in range(40):
        compute = step % 7 == 0 or rule.judge(0.0).compute
        rule.took(compute)
        length = 0 if compute else length + 1
        runs.append(length)
    assert max(runs) == limit


def test_always_similar_with_one_skip_at_most_alternates():
    rule, skipped = Rule(1.0, 1), []
    for step in range(19):
        compute = step < 4 or rule.judge(0.0).compute
        rule.took(compute)
        if not compute:
            skipped.append(step)
    assert skipped == [4, 6, 8, 10, 12, 14, 16, 18]


@pytest.mark.parametrize("difference", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_computed(difference):
    verdict = Rule(1e9).judge(difference)
    assert (verdict.compute, verdict.reason) == (True, "not-finite")


def test_a_threshold_of_zero_never_skips():
    assert Rule(0.0).judge(0.0).compute


def test_a_difference_grows_in_proportion_to_the_steps():
    assert expected(0.3, over=3, now=4) == pytest.approx(0.4)
    assert expected(0.3, over=0, now=0) == 0.3, "the same step again counts as one"


def test_a_call_is_told_by_its_blocks():
    said = {r: Verdict(r != "below-threshold", r, 0.0) for r in ("below-threshold", "max-skip", "threshold")}
    assert reason_of(said.values()) == "below-threshold"
    assert reason_of([said["threshold"], said["max-skip"]]) == "max-skip"
    assert reason_of([said["threshold"]]) == reason_of([]) == "threshold"


def test_first_block_has_one_block_in_front_whatever_the_options_say():
    assert settings().parts == Parts(1, 0)
    assert settings("dualblock", front_blocks=3, tail_blocks=2).parts == Parts(3, 2)


def test_the_rules_and_the_settings_do_not_load_torch():
    code = (
        "import sys, wf_plugin_cache_blocks\n"
        "from wf_plugin_cache_blocks import rule, settings\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
