"""Calibration: which changes are kept, and a file that the cache accepts."""

from __future__ import annotations

import json

import pytest
import torch
from adacache_fakes import Driver, start

from support import models
from wf_core import Host
from wf_core.api import BadInput, Facts
from wf_core.testing import load_pipeline
from wf_plugin_cache_adacache.calibrate import AdaCacheCalibrator
from wf_plugin_cache_adacache.settings import settle

FACTS = Facts.of({"model.id": "own-wan", "model.layers": 3}, "test")
CHANGES = [0.01 * (k + 1) for k in range(20)]


def calibrator(**options):
    return AdaCacheCalibrator({"motion": False, **options}, FACTS)


def driver_of(subject):
    driver = Driver()
    driver.cache = subject
    return driver


def observe(subject, changes=CHANGES, branches=("cond", "uncond"), steps=None, **call):
    """A run whose watched signal moves by these relative changes."""
    driver = driver_of(subject)
    total = len(changes) + 1
    driver.begin(driver.view(total))
    level = 1.0
    for index in range(total):
        level *= 1 + (changes[index - 1] if index else 0.0)
        driver.signal = torch.full((1, 2, 4), level)
        for branch in branches if steps is None or index in steps else ():
            x = torch.zeros(1, 2, 4)
            assert torch.equal(driver.call(index, x, branch=branch, total=total, **call), x + 3.0)
    held = len(list(subject.held_tensors()))
    subject.end()
    return held


def test_changes_are_one_per_pair_and_branch_and_are_those_of_the_rule():
    subject = calibrator()
    assert observe(subject) == 2
    assert [point.step for point in subject.points if point.branch == "cond"] == list(range(1, 21))
    assert [point.change for point in subject.points if point.branch == "uncond"] == pytest.approx(
        CHANGES, rel=1e-4
    )
    driver = start(30, thresholds=(9.0,), rates=(2,), motion=False, first=30)
    driver.signal = torch.ones(1, 2, 4)
    driver.call(0, total=30)
    driver.signal = torch.full((1, 2, 4), 1 + CHANGES[0])
    driver.call(1, total=30)
    driver.call(2, total=30)
    assert driver.cache.events[-1].metric == pytest.approx(subject.points[0].change, rel=1e-6)


def test_motion_weighs_a_change_as_the_rule_does():
    """One frame has no motion, so that nothing is weighed; two opposite ones weigh 2075."""
    subject = AdaCacheCalibrator({}, FACTS)
    driver = driver_of(subject)
    driver.begin(driver.view(10))
    signal = torch.tensor([1.0, 1.0, -1.0, -1.0])[None, :, None].expand(1, 4, 2)
    for index in (4, 5, 6):
        driver.signal = signal * 1.001**index
        driver.call(index, torch.ones(1, 4, 2), total=10, grid=(2, 1, 2))
    first, second = (point.change for point in subject.points)
    assert first == pytest.approx(0.001 * (2075 + 10 * 2074), rel=1e-2)
    assert second == pytest.approx(0.001 * 2075, rel=1e-2)


def test_the_median_step_gets_a_rate_of_two_to_four(tmp_path):
    subject = calibrator()
    for _ in range(2):
        observe(subject)
    found = subject.result()
    assert (found["feature"], found["schema"], found["model"], found["block"]) == (
        "adacache",
        1,
        "own-wan",
        1,
    )
    assert (found["num_inference_steps"], found["motion"]) == (21, False)
    spread = found["spread"]
    assert 2 <= spread["median_rate"] <= 4
    assert (spread["points"], spread["runs"], spread["branches"]) == (80, 2, ["cond", "uncond"])
    assert spread["least"] <= spread["quantiles"]["0.5"] <= spread["greatest"]
    path = tmp_path / "own.json"
    path.write_text(json.dumps(found, allow_nan=False))
    settings = settle({"preset": str(path), "motion": False}, FACTS)
    assert settings.book.rate(spread["quantiles"]["0.5"]) == spread["median_rate"]
    assert settings.lent == ""


@pytest.mark.parametrize("call", [{"source": "ambiguous"}, {"grid": (1, 1, 2), "source": "ambiguous"}])
def test_an_ambiguous_call_gives_nothing(call):
    subject = calibrator()
    assert observe(subject, **call) == 0
    assert subject.points == []


def test_steps_that_do_not_follow_each_other_give_nothing():
    subject = calibrator()
    observe(subject, branches=("cond",), steps=(0, 1, 3, 4, 6))
    assert [point.step for point in subject.points] == [1, 4]


def test_too_few_changes_are_refused():
    subject = calibrator()
    observe(subject, CHANGES[:4])
    with pytest.raises(BadInput, match="8 changes of block 1"):
        subject.result()
    observe(subject, CHANGES[:4])
    assert subject.result()["spread"]["points"] == 16


def test_changes_that_are_not_finite_are_counted_and_left_out():
    subject = calibrator()
    observe(subject, [*CHANGES, float("nan"), 0.1, 0.1])
    spread = subject.result()["spread"]
    assert (spread["points"], spread["not_finite"]) == (40, 6)
    json.dumps(spread, allow_nan=False)


def test_tiny_wan_can_be_calibrated_and_the_file_used(tmp_path):
    """What the command does with the calibrator, on a short call."""
    host = Host.discover()
    call = {"height": 64, "width": 64, "num_frames": 5, "num_inference_steps": 10, "guidance_scale": 3.0}
    pipe = models.quiet(load_pipeline(host.model_directory("tiny-wan")))
    subject = AdaCacheCalibrator({}, host.facts("tiny-wan"))
    with host.session(pipe, {}, extra={"calibrator": subject}) as session:
        session.pipe(prompt="a red 3 moving left", output_type="latent", **call)
    found = subject.result()
    assert found["spread"]["points"] == 2 * 9
    assert found["num_inference_steps"] == 10
    path = tmp_path / "own.json"
    path.write_text(json.dumps(found, allow_nan=False))
    with host.session(pipe, {"adacache": {"preset": str(path)}}) as session:
        session.pipe(prompt="a red 3 moving left", output_type="latent", **call)
        evidence = session.report["effective"]["adacache"]["evidence"]
    assert evidence["source"] == f"preset {path}"
    assert evidence["skipped"] > 0
    assert "uncalibrated" not in evidence
