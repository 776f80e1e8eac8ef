"""The rule alone, and the reference vector through the rule and through the technique."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from wf_core.testing import CacheDriver
from wf_plugin_cache_easycache.cache import EasyCache
from wf_plugin_cache_easycache.rule import Settings, Skips, estimate, free_steps, rate

(VECTOR,) = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())
X, EXPECTED = VECTOR["inputs"]["x"], VECTOR["expected"]
TOTAL = len(X)


def play_by_rule(xs, threshold, first, last):
    """The vector's run in plain numbers: computed steps, outputs, and k after each step."""
    skips, computed, outputs, rates = Skips(threshold), [], [], []
    k, accumulated, kept = None, 0.0, None
    for i, x in enumerate(xs):
        compute = i < first or i >= len(xs) - last or k is None
        if not compute:
            accumulated += estimate(k, abs(kept[1]), abs(x - xs[i - 1]))
            compute, _ = skips.offer(accumulated)
        if compute:
            v = 0.5 * x + 0.1 * i
            k = rate(abs(v - kept[1]), abs(x - kept[0])) if kept else None
            kept, accumulated = (x, v), 0.0
            skips.reset()
            computed.append(i)
        else:
            v = x + (kept[1] - kept[0])
        outputs.append(v)
        rates.append(k)
    return computed, outputs, rates


def test_the_vector_by_the_rule():
    computed, outputs, rates = play_by_rule(X, 0.05, 2, 1)
    assert computed == EXPECTED["compute_steps"]
    assert outputs == pytest.approx(EXPECTED["out"], abs=VECTOR["tolerance"])
    assert rates[0] is None
    assert rates[1:] == pytest.approx(EXPECTED["k_after_step"][1:], abs=VECTOR["tolerance"])


def test_the_vector_by_the_technique():
    """In fp32, whose last digits at 10 are 1e-6."""
    step = 0
    driver = CacheDriver(EasyCache(Settings(0.05, 2, 1)), [lambda x: 0.5 * x + 0.1 * step])
    driver.begin(driver.view(TOTAL))
    for branch in ("cond", "uncond"):
        assert driver.computed(branch) == []
    for step, x in enumerate(X):
        for branch in ("cond", "uncond"):
            out = driver.call(step, torch.full((1, 2, 3), x), branch=branch, total=TOTAL)
            assert out == pytest.approx(torch.full((1, 2, 3), EXPECTED["out"][step]), abs=1e-5)
    assert driver.computed("cond") == driver.computed("uncond") == EXPECTED["compute_steps"]
    metrics = {event.step: event.metric for event in driver.cache.events if event.branch == "cond"}
    assert metrics[2] == pytest.approx(0.3 * 0.5 / 4.85, abs=1e-5)
    assert metrics[3] == pytest.approx(0.3 * (0.5 + 0.4) / 4.85, abs=1e-5)
    assert metrics[5] == pytest.approx(EXPECTED["k_after_step"][3] * (0.4 + 0.3) / 4.6, abs=1e-5)


def test_the_threshold_itself_is_computed():
    assert Skips(0.5).offer(0.5) == (True, "threshold")
    assert Skips(0.5).offer(math.nextafter(0.5, 0)) == (False, "below-threshold")
    assert Skips(0.0).offer(0.0) == (True, "threshold")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_computed(bad):
    assert Skips(1.0).offer(bad) == (True, "not-finite")


def test_a_run_of_skips_is_cut_and_starts_anew():
    skips = Skips(1.0, max_skip=2)
    assert [skips.offer(0.1)[1] for _ in range(5)] == [
        "below-threshold",
        "below-threshold",
        "max-skip",
        "below-threshold",
        "below-threshold",
    ]
    skips.reset()
    assert skips.offer(0.1) == (False, "below-threshold")


@pytest.mark.parametrize(
    ("total", "experts", "first", "last", "free"),
    [
        (30, "", 10, 1, 19),
        (11, "", 10, 1, 0),
        (4, "", 0, 0, 2),
        (2, "", 0, 0, 0),
        (6, "aaabbb", 0, 0, 2),
        (6, "aaabbb", 3, 1, 0),
        (5, "aabba", 0, 0, 0),
        (1, "", 10, 1, 0),
    ],
)
def test_how_many_steps_the_rule_decides_about(total, experts, first, last, free):
    assert free_steps(total, tuple(experts), first, last) == free
