"""The rule alone, and the reference vectors through the rule and through the technique."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from wf_core.testing import CacheDriver
from wf_plugin_cache_cfg_gate.cache import CfgGate
from wf_plugin_cache_cfg_gate.rule import (
    decisions,
    difference,
    first_gated,
    least_fraction,
    unconditional,
)

VECTORS = {v["id"]: v for v in json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())}
GATE, NUMBERS = VECTORS["cfg.gate"], VECTORS["cfg.gate.num"]
TOTAL = GATE["inputs"]["N"]
ROWS = list(
    zip(
        GATE["inputs"]["fractions"],
        GATE["expected"]["first_gated_step"],
        GATE["expected"]["full_cfg_steps"],
        strict=True,
    )
)


@pytest.mark.parametrize(("fraction", "gate", "full"), ROWS)
def test_where_the_gate_stands(fraction, gate, full):
    found = first_gated(fraction, TOTAL)
    if full is None:
        assert found == 0
    else:
        assert found == (TOTAL if gate is None else gate)
        assert sum(runs for runs, _ in decisions(fraction, TOTAL)) == full


@pytest.mark.parametrize(("fraction", "gate", "full"), ROWS)
def test_where_the_gate_stands_in_the_technique(fraction, gate, full):
    driver = CacheDriver(CfgGate(fraction))
    run = driver.view(TOTAL)
    if full is None:
        (reason,) = driver.cache.check(run)
        assert f"of {TOTAL} steps is less than one step" in reason and reason.endswith("at least 0.02.")
        return
    driver.begin(run)
    driver.play(run, ("cond", "uncond"))
    assert driver.computed("cond") == list(range(TOTAL))
    assert driver.computed("uncond") == list(range(full))


def guided(c, u, s):
    return [b + s * (a - b) for a, b in zip(c, u, strict=True)]


def test_the_numbers_of_a_gated_step_by_the_rule():
    given, expected = NUMBERS["inputs"], NUMBERS["expected"]
    c, u, now, s = (given[k] for k in ("v_cond_last_full", "v_uncond_last_full", "v_cond_now", "scale"))
    delta = [difference(a, b) for a, b in zip(c, u, strict=True)]
    assert delta == pytest.approx(expected["delta"], abs=NUMBERS["tolerance"])
    assert guided(c, u, s) == pytest.approx(expected["guided_last_full"], abs=NUMBERS["tolerance"])
    reused = [unconditional(a, d) for a, d in zip(now, delta, strict=True)]
    assert guided(now, reused, s) == pytest.approx(expected["guided_gated"], abs=NUMBERS["tolerance"])


def test_the_numbers_of_a_gated_step_by_the_technique():
    """In float64, with the pipeline's own formula outside."""
    given, expected = NUMBERS["inputs"], NUMBERS["expected"]
    scale = given["scale"]
    c, u, now = (
        torch.tensor(given[k], dtype=torch.float64).reshape(1, 2, 1)
        for k in ("v_cond_last_full", "v_uncond_last_full", "v_cond_now")
    )
    driver = CacheDriver(CfgGate(0.5), [lambda x: x])  # the model gives what it is given
    driver.begin(driver.view(2))
    found = []
    for step, (cond, uncond) in enumerate(((c, u), (now, u * torch.nan))):
        a = driver.call(step, cond, branch="cond", total=2)
        b = driver.call(step, uncond, branch="uncond", total=2)
        found.append((b + scale * (a - b)).flatten().tolist())
    assert found[0] == pytest.approx(expected["guided_last_full"], abs=NUMBERS["tolerance"])
    assert found[1] == pytest.approx(expected["guided_gated"], abs=NUMBERS["tolerance"])


@pytest.mark.parametrize(
    ("fraction", "total", "gate"),
    [(0.58, 50, 29), (0.29, 100, 29), (0.6, 30, 18), (0.7, 30, 21), (0.99, 4, 3)],
)
def test_a_decimal_share_means_what_it_says(fraction, total, gate):
    assert first_gated(fraction, total) == gate


@pytest.mark.parametrize("total", [1, 2, 3, 7, 30, 50, 1000])
def test_the_least_share_that_a_refusal_names_is_accepted(total):
    assert first_gated(least_fraction(total), total) >= 1
    assert first_gated(least_fraction(total) - 2e-4, total) < 1 or total == 1


def test_an_experts_first_step_is_full_also_behind_the_gate():
    found = decisions(0.25, 8, ("high",) * 5 + ("low",) * 3)
    assert [index for index, (runs, _) in enumerate(found) if runs] == [0, 1, 5]
    assert found[5] == (True, "expert-start")
    assert decisions(0.25, 8, ("high",) * 8, {6})[6] == (True, "forced")
