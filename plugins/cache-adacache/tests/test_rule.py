"""The rule alone: every reference vector, and what the published code leaves open."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from adacache_fakes import expected, inputs

from wf_plugin_cache_adacache import books
from wf_plugin_cache_adacache.fit import above, codebook, quantile
from wf_plugin_cache_adacache.rule import Codebook, Motion, Rater, schedule
from wf_plugin_cache_adacache.signals import measure

LONG = books.published()["100-steps"]


def test_the_published_codebook_gives_the_reference_rates():
    assert [LONG.rate(change) for change in inputs("ada.codebook")["metric"]] == expected("ada.codebook")[
        "rate"
    ]


def test_the_reference_change_with_motion():
    row, wanted = inputs("ada.metric"), expected("ada.metric")
    older, signal = (torch.tensor(row[key])[None] for key in ("prev", "now"))
    moved, motions = measure(signal, older, row["tokens_per_frame"]).tolist()
    assert moved[0] / row["gap"] == pytest.approx(wanted["diff_per_step"], abs=1e-6)
    motion = books.motion()
    assert motion.weight(row["previous_moreg"] * motion.scale) == 1.0
    rater = Rater(LONG, motion)
    verdict = rater.verdict(moved, motions, row["gap"])
    assert verdict.change == pytest.approx(wanted["metric"], abs=1e-6)
    assert verdict.rate == wanted["rate"]


def test_the_reference_motion():
    """raw_moreg .44 with the published constants."""
    wanted = expected("ada.metric")
    weight = books.motion().weight(wanted["raw_moreg"])
    assert weight == pytest.approx(wanted["moreg"], abs=1e-6)
    assert books.motion().gradient * (weight - 1.0) / 3 == pytest.approx(wanted["mograd"], abs=1e-6)


def test_the_reference_schedule():
    wanted = expected("ada.sched")
    asked = {}

    def rate_at(index):
        asked[index] = Rater(LONG).verdict([0.02 + 0.002 * index], None, 1).rate
        return asked[index]

    assert list(schedule(50, rate_at)) == wanted["compute_steps"]
    assert [[0, 1], *([step, rate] for step, rate in asked.items())] == wanted["rate_at"]


def test_first_and_last_steps_and_experts_are_computed():
    assert schedule(10, lambda _: 99, first=3, last=2) == (0, 1, 2, 8, 9)
    assert schedule(10, lambda _: 99, last=1, starts={0, 5}) == (0, 1, 5, 6, 9)


def test_rates_grow_with_the_run_and_are_rounded_down():
    fast = books.published()["fast"]
    assert fast.scaled(30) == fast
    assert fast.scaled(50).rates == (10, 8, 6, 5, 3, 1)
    assert fast.scaled(15).rates == (3, 2, 2, 1, 1, 1)
    assert fast.scaled(4).rates == (1,) * 6
    assert LONG.scaled(50).rates == (6, 5, 4, 3, 2, 1)
    own = Codebook((0.1,), (5,))
    assert own.scaled(4) is own
    assert fast.scaled(0) is fast


@pytest.mark.parametrize(
    ("thresholds", "rates"),
    [
        ((), ()),
        ((0.1,), (1, 2)),
        ((0.2, 0.1), (2, 1)),
        ((0.1, 0.1), (2, 1)),
        ((0.1,), (0,)),
        ((0.0,), (2,)),
        ((math.nan,), (2,)),
        ((math.inf,), (2,)),
        (tuple(range(1, 102)), (1,) * 101),
    ],
)
def test_a_malformed_codebook_is_refused(thresholds, rates):
    with pytest.raises(ValueError, match="codebook"):
        Codebook(thresholds, rates)


def test_the_change_is_per_step_and_the_worst_sample_decides():
    rater = Rater(Codebook((0.1, 0.2), (4, 2)))
    assert rater.verdict([0.3], None, 4).rate == 4
    both = rater.verdict([0.05, 0.15], None, 1)
    assert (both.rate, both.change) == (2, 0.15)
    odd = Rater(Codebook((0.1, 0.2), (2, 4)))
    assert odd.verdict([0.05, 0.15], None, 1).rate == 2, "the smallest rate, whatever change it is of"


def test_a_threshold_cuts_the_rate_and_says_so():
    rater = Rater(Codebook((1.0,), (4,)), threshold=0.2)
    below, at = rater.verdict([0.19], None, 1), rater.verdict([0.2], None, 1)
    assert (below.rate, below.cut) == (4, False)
    assert (at.rate, at.cut) == (1, True)
    assert Rater(Codebook((1.0,), (4,)), threshold=0.0).verdict([0.0], None, 1).rate == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_gives_rate_one_and_is_forgotten(bad):
    rater = Rater(Codebook((1e9,), (4,)), Motion())
    assert not rater.verdict([bad, 0.1], [0.385, 0.385], 1).finite
    assert rater.verdict([0.1, 0.1], [0.385, 0.385], 1).rate == 4
    assert not rater.verdict([0.1, 0.1], [bad, 0.385], 1).finite
    after = rater.verdict([0.1, 0.1], [0.385, 0.385], 1)
    assert after.finite
    assert after.change == pytest.approx(0.1)


def test_motion_is_weighed_from_a_tenth_to_nine_tenths_of_the_run():
    covered = [index for index in range(50) if Motion().covers(index, 50)]
    assert covered == list(range(5, 46))


def test_the_weight_of_a_batch_is_kept_by_sample_and_starts_anew():
    rater = Rater(Codebook((1.0,), (2,)), Motion(gradient=1.0, power=1.0, scale=1.0))
    assert rater.changes([1.0, 1.0], [0.5, 1.0], 1) == (1.0, 1.0)
    assert rater.changes([1.0, 1.0], [0.5, 0.0], 2) == (0.25, 0.25)
    assert rater.changes([1.0], [1.0], 1) == (1.0,), "another batch: from 1.0 again"
    rater.changes([1.0], [0.0], 1)
    rater.restart()
    assert rater.changes([1.0], None, 1) == (1.0,)


def test_the_shipped_codebooks_are_those_of_the_reference():
    """The numbers of the reference, written out: a changed file must show."""
    books_, motion = books.published(), books.motion()
    thirty = (0.08, 0.16, 0.24, 0.32, 0.40, 1.0)
    assert books_["fast"] == Codebook(thirty, (6, 5, 4, 3, 2, 1), 30)
    assert books_["slow"] == Codebook(thirty, (3, 2, 1, 1, 1, 1), 30)
    assert books_["100-steps"] == Codebook((0.03, 0.05, 0.07, 0.09, 0.11, 1.0), (12, 10, 8, 6, 4, 3), 100)
    assert motion == Motion(first=0.1, last=0.9, scale=0.385, power=8, divisor=1, gradient=10)


def test_a_fitted_book_gives_the_median_step_rate_three():
    changes = [0.001 * 1.05**k for k in range(101)]
    book = codebook([*changes, math.nan, math.inf], 30)
    assert book.steps == 30
    assert book.rate(quantile(changes, 0.5)) == 3
    given = [book.rate(change) for change in changes]
    assert [given.count(rate) for rate in (6, 5, 4, 3, 2, 1)] == pytest.approx(
        [10, 10, 15, 30, 20, 16], abs=2
    )
    assert given == sorted(given, reverse=True)


def test_a_book_of_equal_changes_is_one_entry_with_rate_three():
    book = codebook([0.1] * 20, 30)
    assert book.rate(0.1) == 3
    assert codebook([0.0] * 20, 30).rate(0.0) == 3


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.0999, 0.1, 0.123, 1.0, 9.99, 9.999, 123.4, 1999.5])
def test_a_threshold_is_just_above_its_change(value):
    found = above(value)
    assert value < found <= max(value * 1.021, 1e-6)
    assert float(f"{found:.3g}") == found


def test_the_vectors_are_all_here():
    names = {row["id"] for row in json.loads((Path(__file__).parent / "data/vectors.json").read_text())}
    assert names == {"ada.codebook", "ada.metric", "ada.sched"}
