"""Calibration: points, fit, threshold, and a file that the cache accepts."""

from __future__ import annotations

import json

import pytest
import torch
from teacache_fakes import Driver, Ramp, ramp_timesteps

from wf_core.api import BadInput, Facts
from wf_lib_teacache.cache import TeaCache
from wf_lib_teacache.rule import polynomial, schedule
from wf_lib_teacache.settings import settle
from wf_plugin_cache_teacache.calibrate import TeaCacheCalibrator
from wf_plugin_cache_teacache.fit import least_squares, recommended_threshold

FACTS = Facts.of({"model.id": "own-wan", "model.checkpoint_hash": "abc123"}, "test")
TRUTH = (-40.0, 30.0, -6.0, 1.5, 0.02)
DISTANCES = [0.02 + 0.01 * i for i in range(20)]


def calibrator(facts=FACTS):
    return TeaCacheCalibrator({}, facts)


def observe(subject, distances=DISTANCES, branches=("cond", "uncond"), batch=2, noise=0.0):
    """A run whose residual grows by TRUTH(d) at each step, so that the relative change is known."""
    player = Driver(subject, Ramp())
    run = player.view(ramp_timesteps([0, *distances]))
    player.begin(run)
    generator = torch.Generator().manual_seed(0)
    level = 1.0
    for index, timestep in enumerate(run.timesteps):
        if index:
            jitter = noise * float(torch.randn(1, generator=generator))
            level *= 1 + polynomial(TRUTH, distances[index - 1]) + jitter
        for branch in branches:
            player.bias = level
            x = torch.zeros(batch, 2, 4)
            y = player.at(index, timestep, x, branch=branch, total=len(run.timesteps))
            assert torch.equal(y, x + level), "calibration changes nothing"
    subject.end()
    return player


def test_points_are_one_per_pair_branch_and_sample():
    subject = calibrator()
    observe(subject)
    assert len(subject.points) == 20 * 2 * 2
    point = subject.points[0]
    assert (point.step, point.total, point.branch) == (1, 21, "cond")
    assert point.distances["e"] == pytest.approx(0.02, rel=1e-4)
    assert point.change == pytest.approx(polynomial(TRUTH, 0.02), rel=1e-4)


def test_the_polynomial_is_found_again():
    subject = calibrator()
    observe(subject)
    result = subject.result()
    record = next(record for record in result["presets"] if record["signal"] == "e")
    for d in DISTANCES:
        assert polynomial(record["coefficients"], d) == pytest.approx(polynomial(TRUTH, d), rel=1e-3)
    assert record["fit"]["r2"] > 0.9999
    assert record["fit"]["points"] == 19 * 2 * 2, "the last step is computed anyway"
    assert record["fit"]["domain"] == pytest.approx([0.02, 0.20], rel=1e-4)
    assert (record["models"], record["checkpoint"], record["num_inference_steps"]) == (
        ["own-wan"],
        "abc123",
        21,
    )
    json.dumps(result, allow_nan=False)


def test_e0_is_fitted_on_the_steps_that_its_rule_decides_about():
    subject = calibrator()
    observe(subject)
    record = next(record for record in subject.result()["presets"] if record["signal"] == "e0")
    assert record["fit"]["points"] == 16 * 2 * 2
    assert record["fit"]["domain"] == pytest.approx([0.06, 0.21], rel=1e-4)
    assert (record["first"], record["last"]) == (5, 0)


def test_the_better_fit_names_the_signal():
    subject = calibrator()
    observe(subject, noise=0.01)
    result = subject.result()
    r2 = {record["signal"]: record["fit"]["r2"] for record in result["presets"]}
    assert set(r2) == {"e", "e0"}
    assert result["signal"] == max(r2, key=r2.__getitem__)
    assert max(r2.values()) < 1.0


def test_the_file_is_accepted_and_skips_half_of_the_free_steps(tmp_path):
    subject = calibrator()
    observe(subject)
    path = tmp_path / "own.json"
    path.write_text(json.dumps(subject.result()))
    for signal in ("e", "e0"):
        rule = settle({"preset": str(path), "signal": signal}, FACTS)
        assert (rule.lent, rule.confidence) == ("", "calibrated")
        player = Driver(TeaCache(rule), Ramp())
        run = player.view(ramp_timesteps([0, *DISTANCES]))
        counters = player.begin(run)
        player.play(run)
        free = 21 - rule.first - rule.last
        assert free / 2 <= counters.counts["skipped"] <= 0.8 * free
    with pytest.raises(BadInput, match="allow_uncalibrated"):
        settle({"preset": str(path)}, Facts.of({"model.id": "other-wan"}, "test"))


def test_recommended_threshold_is_the_least_that_skips_half():
    distances = [0.0] + [0.1] * 10 + [0.1]
    threshold = recommended_threshold(distances, (1.0, 0.0), 1, 1)
    assert threshold is not None
    assert threshold == pytest.approx(0.1, rel=0.02)

    def skipped(value):
        return sum(not decision.compute for decision in schedule(distances, (1.0, 0.0), value, 1, 1))

    assert skipped(threshold) == 5
    assert skipped(0.0999) == 0


def test_no_threshold_is_recommended_where_none_is_safe():
    assert recommended_threshold([0.0] + [0.1] * 8, (0.0, -1.0), 1, 1) is None
    assert recommended_threshold([0.0, 0.1], (1.0, 0.0), 1, 1) is None


def test_steps_that_do_not_follow_each_other_give_no_point():
    subject = calibrator()
    player = Driver(subject, Ramp())
    run = player.view(ramp_timesteps([0] + [0.1] * 5))
    player.begin(run)
    for index in (0, 1, 3, 4):
        player.at(index, run.timesteps[index], total=6)
    assert [point.step for point in subject.points] == [1, 4]


def test_an_ambiguous_call_and_another_shape_give_no_point():
    subject = calibrator()
    player = Driver(subject, Ramp())
    run = player.view(ramp_timesteps([0] + [0.1] * 5))
    player.begin(run)
    player.at(0, run.timesteps[0])
    player.at(1, run.timesteps[1], source="ambiguous")
    player.at(2, run.timesteps[2])
    player.at(3, run.timesteps[3], torch.ones(1, 5, 4))
    assert subject.points == []


def test_points_of_several_runs_are_fitted_together_and_runs_are_not_joined():
    subject = calibrator()
    for _ in range(2):
        observe(subject, branches=("cond",), batch=1)
    assert len(subject.points) == 40
    fit = subject.result()["presets"][0]["fit"]
    assert (fit["runs"], fit["branches"], fit["experts"]) == (2, ["cond"], ["transformer"])


def test_experts_are_not_compared_with_each_other():
    subject = calibrator()
    player = Driver(subject, Ramp())
    experts = ["high"] * 2 + ["low"] * 2
    run = player.view(ramp_timesteps([0] + [0.1] * 3), experts)
    player.begin(run)
    for index, timestep in enumerate(run.timesteps):
        player.at(index, timestep, expert=experts[index], total=4)
    assert [(point.step, point.expert) for point in subject.points] == [(1, "high"), (3, "low")]


def test_nothing_is_held_after_a_run():
    subject = calibrator()
    observe(subject)
    assert list(subject.held_tensors()) == []


def test_too_few_steps_are_refused_with_the_least_number():
    subject = calibrator()
    with pytest.raises(BadInput, match="at least 7 steps"):
        subject.result()
    observe(subject, DISTANCES[:5])
    with pytest.raises(BadInput, match="too few different distances"):
        subject.result()
    enough = calibrator()
    observe(enough, DISTANCES[:6])
    assert [record["signal"] for record in enough.result()["presets"]] == ["e"]


def test_points_that_are_not_finite_are_left_out():
    points = [(d, polynomial(TRUTH, d)) for d in DISTANCES]
    fit = least_squares([*points, (0.1, float("nan")), (float("inf"), 1.0)])
    assert fit is not None
    assert fit.points == 20
    assert fit.coefficients == pytest.approx(TRUTH, rel=1e-6)


def test_r2_of_a_target_that_does_not_depend_on_the_signal_is_low():
    generator = torch.Generator().manual_seed(1)
    changes = torch.randn(400, generator=generator).tolist()
    fit = least_squares([(0.01 * (i % 20 + 1), change) for i, change in enumerate(changes)])
    assert fit is not None
    assert 0 <= fit.r2 < 0.1
    assert 0.2 < fit.negative_share < 0.8


@pytest.mark.parametrize("family", ["hunyuan", "cosmos"])
def test_a_family_that_is_judged_by_another_signal_is_refused(family):
    known = Facts.of({"model.id": "own", "model.family": family}, "test")
    with pytest.raises(
        BadInput, match="measures the time signals e and e0, and this model family is judged by"
    ):
        calibrator(known)
