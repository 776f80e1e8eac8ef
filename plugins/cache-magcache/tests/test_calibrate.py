"""Measuring ratios: known residuals in, their ratios out."""

from __future__ import annotations

import json

import pytest
import torch
from magcache_vectors import facts

from wf_core.api import BadInput, RunView, Step
from wf_plugin_cache_magcache import wf_calibrator
from wf_plugin_cache_magcache.calibrate import MagCacheCalibrator, changes, recommended_threshold
from wf_plugin_cache_magcache.presets import read_file
from wf_plugin_cache_magcache.settings import settle

FACTS = facts(model__checkpoint_hash="sha256:feed")
RATIOS = {"cond": (1.0, 0.9, 0.8, 0.95, 0.97), "uncond": (1.0, 1.1, 0.7, 0.9, 0.5)}


def view(total, experts, branches):
    return RunView(total, (), experts, branches, FACTS, modulation=lambda e, t: {}, now=lambda: None)


def measure(calibrator, ratios=RATIOS, experts=(), dtype=torch.float32, batch=1, seed=0):
    """One run whose residuals shrink by the given ratios."""
    g = torch.Generator().manual_seed(seed)
    total = len(ratios["cond"])
    calibrator.begin(view(total, experts, len(ratios)))
    base = torch.randn(batch, 6, 32, generator=g)
    sizes = dict.fromkeys(ratios, 1.0)
    for index in range(total):
        for branch, row in ratios.items():
            sizes[branch] *= row[index]
            x = torch.randn(batch, 6, 32, generator=g).to(dtype)
            expert = experts[index] if experts else "transformer"
            step = Step(index, total, branch, expert, "context", torch.zeros(batch), (1, 2, 3))
            calibrator.observe(step, x, (x.float() + sizes[branch] * base).to(dtype))
    calibrator.end()
    return calibrator


def test_the_ratios_of_known_residuals():
    record = measure(MagCacheCalibrator(FACTS)).result()["presets"][0]
    for branch, wanted in RATIOS.items():
        assert record[f"ratios_{branch}"] == pytest.approx(wanted, abs=2e-6)
        assert max(record["measured"][branch]["token_std"]) < 1e-5
        assert max(record["measured"][branch]["one_minus_cos"]) < 1e-5
    assert "high_noise_steps" not in record and "task" not in record


def test_bf16_residuals_are_measured_in_fp32():
    """In bf16 a ratio could only be a multiple of 2**-8."""
    record = measure(MagCacheCalibrator(FACTS), dtype=torch.bfloat16, batch=2).result()["presets"][0]
    assert record["ratios_cond"] == pytest.approx(RATIOS["cond"], abs=2e-3)
    assert any(abs(r * 256 - round(r * 256)) > 0.02 for r in record["ratios_cond"])


def test_each_token_counts_alike():
    """The mean of the tokens' ratios, not the ratio of means; its spread and the turn stand beside it."""
    before = torch.tensor([[[1.0, 0.0], [0.0, 10.0]]])
    now = torch.tensor([[[2.0, 0.0], [10.0, 0.0]]])
    (change,) = changes(now, before)
    assert (change.ratio, change.token_std, change.turn) == pytest.approx((1.5, 0.5, 0.5))


def test_prompts_are_averaged_and_their_spread_is_told():
    calibrator = measure(MagCacheCalibrator(FACTS), {"cond": (1.0, 0.8, 0.9)})
    record = measure(calibrator, {"cond": (1.0, 0.9, 0.9)}, seed=1).result()["presets"][0]
    assert record["ratios_cond"] == pytest.approx((1.0, 0.85, 0.9), abs=2e-6)
    assert record["measured"]["cond"]["spread"] == pytest.approx((0.0, 0.05, 0.0), abs=2e-6)
    assert (record["measured"]["runs"], record["measured"]["samples"]) == (2, 2)


def test_two_experts_are_measured_apart():
    experts = ("transformer",) * 2 + ("transformer_2",) * 3
    record = measure(MagCacheCalibrator(FACTS), experts=experts).result()["presets"][0]
    assert record["high_noise_steps"] == 2
    assert record["ratios_cond"] == pytest.approx((1.0, 0.9, 1.0, 0.95, 0.97), abs=2e-6)
    assert record["measured"]["samples"] == 1, "an expert's first step has none, and is no measurement"


def test_the_file_is_a_preset(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(measure(MagCacheCalibrator(FACTS)).result()))
    (preset,) = read_file(path).values()
    assert (preset.models, preset.checkpoint) == (("own-wan",), "sha256:feed")
    found = settle({"preset": str(path)}, FACTS)
    assert found.cond == preset.cond and found.uncond == preset.uncond and not found.lent
    with pytest.raises(BadInput, match="other weights"):
        settle({"preset": str(path)}, facts(model__checkpoint_hash="sha256:other"))


def test_the_hook_gives_the_calibrator():
    assert isinstance(wf_calibrator(feature="magcache", options={}, facts=FACTS), MagCacheCalibrator)


@pytest.mark.parametrize("steps", [0, 1])
def test_too_little_to_measure_is_said(steps):
    calibrator = MagCacheCalibrator(FACTS)
    if steps:
        measure(calibrator, {"cond": (1.0,)})
    with pytest.raises(BadInput, match="at least 2 steps"):
        calibrator.result()


def test_runs_of_different_lengths_are_not_mixed():
    calibrator = measure(MagCacheCalibrator(FACTS), {"cond": (1.0, 0.9, 0.9)})
    with pytest.raises(BadInput, match="3 steps and another 4"):
        measure(calibrator, {"cond": (1.0, 0.9, 0.9, 0.9)})


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), 0.0])
def test_what_is_no_ratio_is_not_written_into_a_preset(ratio):
    """``wf calibrate`` would end well, and the feature refuse the file."""
    with pytest.raises(BadInput, match=r"step 1 of 3 of branch cond .* no finite number above 0"):
        measure(MagCacheCalibrator(FACTS), {"cond": (1.0, ratio, 1.0)}).result()


def test_a_branch_that_stayed_away_is_named():
    calibrator = MagCacheCalibrator(FACTS)
    calibrator.begin(view(3, (), 2))
    x = torch.ones(1, 2, 4)
    for index, branch in ((0, "cond"), (0, "uncond"), (1, "cond"), (1, "uncond"), (2, "cond")):
        step = Step(index, 3, branch, "transformer", "context", torch.zeros(1), (1, 1, 2))
        calibrator.observe(step, x, x * 2)
    with pytest.raises(BadInput, match="step 2 of 3 of branch uncond"):
        calibrator.result()


def test_nothing_is_held_after_a_run():
    calibrator = MagCacheCalibrator(FACTS)
    calibrator.begin(view(2, (), 1))
    step = Step(0, 2, "cond", "transformer", "context", torch.zeros(1), (1, 1, 2))
    calibrator.observe(step, torch.ones(1, 2, 4), torch.ones(1, 2, 4))
    assert len(calibrator.held_tensors()) == 1
    calibrator.end()
    assert not calibrator.held_tensors()


def test_the_proposed_threshold_is_the_least_that_skips_half():
    """Ten ratios, two retained: E is 0.01, 0.03 (0.0299), 0.06; a run of one needs 0.011 and skips 4 of 8."""
    ratios = [1.0, *[0.99] * 9]
    assert recommended_threshold(ratios, 0) == 0.011
    assert recommended_threshold([1.0, 0.1], 0) == 0.901
    assert recommended_threshold([1.0, 3.0, 3.0], 0) is None
