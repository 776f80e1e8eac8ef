"""The technique on the runtime, driven by hand: a test chooses what the watched block shows at each step."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from adacache_fakes import FACTS, TWO, Driver, expected, inputs, start

from wf_core.api import BadInput
from wf_plugin_cache_adacache import books
from wf_plugin_cache_adacache.cache import AdaCache
from wf_plugin_cache_adacache.settings import settle

LONG = books.published()["100-steps"]


def moving(driver, change, older, gap):
    """A signal that is ``change`` per step from an older one."""
    return older * (1 + change * gap)


def play(driver, total, change, branch="cond", **call):
    """Every step of a run in which the watched signal moves by ``change(index)`` per step since the last computed."""
    older, at = torch.ones(1, 2, 4), 0
    for index in range(total):
        driver.signal = older * (1 + change(index) * (index - at))
        driver.call(index, branch=branch, total=total, **call)
        if driver.cache.events[-1].computed:
            older, at = driver.signal, index
    return driver.computed(branch)


# --- the vectors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "rate"),
    list(zip(inputs("ada.codebook")["metric"], expected("ada.codebook")["rate"], strict=True)),
)
def test_reference_codebook(metric, rate):
    """A step that moves by ``metric`` is followed by ``rate - 1`` skipped ones. fp32 would move a bound: 1e-6 above."""
    driver = start(20, thresholds=LONG.thresholds, rates=LONG.rates, motion=False)
    metric += 1e-6 * (metric in LONG.thresholds)
    computed = play(driver, 20, lambda index: metric if index == 1 else 0.0)
    assert computed[:3] == [0, 1, 1 + rate]


def test_reference_schedule():
    driver = start(50, thresholds=LONG.thresholds, rates=LONG.rates, motion=False, last=0)
    computed = play(driver, 50, lambda index: 0.02 + 0.002 * index + 1e-6)
    assert computed == expected("ada.sched")["compute_steps"]


def test_reference_schedule_with_the_last_step_computed():
    driver = start(50, thresholds=LONG.thresholds, rates=LONG.rates, motion=False)
    computed = play(driver, 50, lambda index: 0.02 + 0.002 * index + 1e-6)
    assert computed == [*expected("ada.sched")["compute_steps"], 49]


def test_reference_change_with_motion():
    """The vector's two signals, three steps apart, at a step at which motion is weighed; before it none was."""
    row, wanted = inputs("ada.metric"), expected("ada.metric")
    older, now = (torch.tensor(row[key])[None] for key in ("prev", "now"))
    driver = start(40, thresholds=LONG.thresholds, rates=LONG.rates, first=0)
    for index, signal in ((1, older), (4, now), (5, now), (6, now)):
        driver.signal = signal
        driver.call(index, torch.ones(1, 4, 2), total=40, grid=(2, 1, 2))
    events = driver.cache.events
    assert [event.computed for event in events] == [True, True, False, False]
    assert events[-1].metric == pytest.approx(wanted["metric"], abs=1e-6)
    driver.call(4 + wanted["rate"], torch.ones(1, 4, 2), total=40, grid=(2, 1, 2))
    assert events[-1].computed
    assert events[-1].reason == "rate-over"


# --- what is watched ------------------------------------------------------------------------------------------------


def test_only_the_self_attention_of_the_watched_main_block_counts():
    """Everything else shows noise, which would be a change of about 1.4."""
    driver = start(8, thresholds=(0.5,), rates=(4,), threshold=0.5, motion=False)
    assert driver.play(driver.view(8))["cond"] == [0, 1, 5, 7]


def test_the_gate_is_part_of_the_signal():
    driver = start(8, thresholds=(0.5,), rates=(4,), threshold=0.5, motion=False)
    for index in range(8):
        driver.gate = torch.full((1, 1, 4), 2.0**index)
        driver.call(index, total=8)
    assert driver.computed() == list(range(8))


def test_the_middle_block_is_watched_unless_told_otherwise():
    assert settle({}, FACTS).block == 1
    assert settle({"block": 2}, FACTS).block == 2
    with pytest.raises(BadInput, match="no block 3"):
        settle({"block": 3}, FACTS)
    with pytest.raises(BadInput, match="block=N"):
        settle({}, FACTS.__class__())


def test_a_block_that_is_not_seen_is_a_fallback():
    driver = start(4, **TWO)
    driver.signal = None
    assert driver.play(driver.view(4))["cond"] == [0, 1, 2, 3]
    assert driver.reasons()[1] == "unseen"
    assert sum(driver.counters.fallbacks.values()) == 4


def test_frames_are_told_by_the_grid_of_the_call():
    """Two frames of two tokens, the second the first's negative: motion 1, and so the change is multiplied by 2075."""
    driver = start(20, thresholds=(1.0, 1e9), rates=(9, 2), first=0)
    signal = torch.tensor([1.0, 1.0, -1.0, -1.0])[None, :, None].expand(1, 4, 2).clone()
    x = torch.ones(1, 4, 2)
    for index in (2, 3):
        driver.signal = signal * 1.001**index
        driver.call(index, x, total=20, grid=(2, 1, 2))
    driver.call(4, x, total=20, grid=(2, 1, 2))
    assert driver.cache.events[-1].metric == pytest.approx(0.001 * (2075 + 10 * 2074), rel=1e-2)


def test_one_frame_has_no_motion_and_tokens_that_are_not_the_grids_are_said():
    for grid, fallbacks in (((1, 1, 2), 0), ((3, 1, 1), 1)):
        driver = start(20, thresholds=(1.0,), rates=(3,), first=0)
        for index in (2, 3):
            driver.call(index, total=20, grid=grid)
        assert len(driver.counters.fallbacks) == fallbacks
        assert driver.cache.events[-1].computed


# --- identity, runs and experts -------------------------------------------------------------------------------------


def test_two_branches_in_any_order_decide_alike():
    accounts = []
    for order in (("cond", "uncond"), ("uncond", "cond")):
        driver = start(12, thresholds=(0.05, 0.2), rates=(4, 2), threshold=0.4, motion=False)
        found = driver.play(driver.view(12), order)
        accounts.append(found)
        assert found["cond"] == found["uncond"] == [0, 1, 5, 9, 11]
    assert accounts[0] == accounts[1]


def test_branches_with_other_signals_decide_for_themselves():
    driver = start(8, thresholds=(0.05, 0.2), rates=(4, 2), motion=False)
    still, older = torch.ones(1, 2, 4), torch.ones(1, 2, 4)
    for index in range(8):
        driver.signal = still
        driver.call(index, branch="cond", total=8)
        driver.signal = older * 1.5
        driver.call(index, branch="uncond", total=8)
        older = driver.signal if driver.cache.events[-1].computed else older
    assert driver.computed("cond") == [0, 1, 5, 7]
    assert driver.computed("uncond") == [0, 1, 3, 5, 7]


def test_poison_in_the_other_branch_stays_there():
    driver = start(8, **TWO)
    nan = torch.full((1, 2, 4), torch.nan)
    for index in range(8):
        driver.signal, driver.bias = torch.ones(1, 2, 4), 1.0
        assert torch.isfinite(driver.call(index, branch="cond", total=8)).all()
        driver.signal, driver.bias = nan, torch.nan
        driver.call(index, branch="uncond", total=8)
    assert driver.computed("cond") == [0, 1, 3, 5, 7]
    assert driver.computed("uncond") == list(range(8))


def test_a_skipped_step_adds_the_last_computed_residual():
    driver = start(8, **TWO)
    for index in range(8):
        driver.bias = float(index + 1)
        x = torch.full((1, 2, 4), float(index))
        out = driver.call(index, x, total=8)
        used = max(step for step in driver.computed() if step <= index)
        assert torch.equal(out, x + 3.0 * (used + 1))
    assert driver.ran[2] == []


def test_an_aborted_run_leaves_nothing_to_the_next():
    driver = start(8, **TWO)
    for index in range(3):
        driver.call(index, total=8)
    driver.begin(driver.view(6))
    assert driver.play(driver.view(6))["cond"] == [0, 1, 3, 5]
    assert driver.reasons()[1] == "first-comparison"


def test_another_geometry_is_computed_and_compared_with_nothing():
    driver = start(12, thresholds=(1.0,), rates=(4,), motion=False)
    for index in range(3):
        driver.call(index, total=12)
    driver.signal = torch.ones(1, 3, 4)
    for index in range(3, 12):
        driver.call(index, torch.ones(1, 3, 4), total=12)
    assert driver.computed() == [0, 1, 3, 4, 8, 11]
    assert driver.reasons()[3] == "geometry-changed"


def test_the_first_step_of_each_expert_is_computed_and_the_firsts_tensors_are_released():
    experts = ("high",) * 6 + ("low",) * 6
    driver = start(tuple(map(float, range(12, 0, -1))), experts, thresholds=(1.0,), rates=(4,), motion=False)
    for index in range(6):
        driver.call(index, expert="high", total=12)
    gone = [weakref.ref(tensor) for tensor in driver.cache.held_tensors()]
    assert len(gone) == 3, "residual, signal, and the distance that was measured last"
    for index in range(6, 12):
        driver.call(index, expert="low", total=12)
        gc.collect()
        assert not any(ref() is not None for ref in gone)
    assert driver.computed(expert="high") == [0, 1, 5]
    assert driver.computed(expert="low") == [6, 7, 11]


def test_a_branch_that_missed_its_computed_step_is_computed_at_the_next():
    driver = start(12, thresholds=(1.0,), rates=(3,), motion=False)
    for index in (0, 1, 2, 3, 6, 7, 8, 9):
        driver.call(index, total=12)
    assert driver.computed() == [0, 1, 6, 9]
    assert driver.reasons()[6] == "missed-step"


def test_the_gap_is_that_of_the_steps_really_compared():
    """Computed at 1 and 6: a change of 0.5 is 0.1 per step."""
    driver = start(20, thresholds=(0.11, 1.0), rates=(5, 2), motion=False)
    for index, size in ((0, 1.0), (1, 1.0), (6, 1.5), (7, 1.5)):
        driver.signal = torch.full((1, 2, 4), size)
        driver.call(index, total=20)
    assert driver.cache.events[-1].metric == pytest.approx(0.1)
    assert not driver.cache.events[-1].computed


def test_a_step_that_comes_again_is_computed():
    driver = start(12, thresholds=(1.0,), rates=(5,), motion=False)
    for index in (0, 1, 2, 1, 2):
        driver.call(index, total=12)
    assert [event.computed for event in driver.cache.events] == [True, True, False, True, True]


def test_an_ambiguous_call_drops_what_was_kept():
    driver = start(12, thresholds=(1.0,), rates=(5,), motion=False)
    for index in range(3):
        driver.call(index, total=12)
    driver.call(3, total=12, source="ambiguous")
    assert list(driver.cache.held_tensors()) == []
    driver.call(4, total=12)
    assert driver.reasons()[4] == "nothing-cached"


def test_a_batch_is_decided_by_its_worst_sample():
    def computed(*changes):
        driver = start(20, thresholds=(0.05, 1.0), rates=(6, 2), motion=False)
        older = torch.ones(len(changes), 2, 4)
        for index in range(8):
            grown = 1 + torch.tensor(changes)[:, None, None]
            driver.signal = older * grown if index else older
            driver.call(index, torch.ones(len(changes), 2, 4), total=20)
            older = driver.signal if driver.cache.events[-1].computed else older
        return driver.computed()

    assert computed(0.0) == [0, 1, 7]
    assert computed(0.3) == computed(0.0, 0.3) == computed(0.3, 0.0, 0.0) == [0, 1, 3, 5, 7]


def test_bfloat16_is_kept_as_it_is():
    driver = start(8, **TWO)
    driver.signal, driver.gate = torch.ones(1, 2, 4, dtype=torch.bfloat16), torch.full((1, 1, 4), 0.5)
    x = torch.ones(1, 2, 4, dtype=torch.bfloat16)
    for index in range(8):
        assert driver.call(index, x, total=8).dtype == torch.bfloat16
    assert driver.computed() == [0, 1, 3, 5, 7]
    driver.call(8, x, total=20)
    assert {tensor.dtype for tensor in driver.cache.held_tensors()} == {torch.bfloat16}


def test_a_change_that_is_not_finite_makes_the_next_step_computed():
    driver = start(12, thresholds=(1.0,), rates=(4,), motion=False)
    for index in range(12):
        driver.signal = torch.full((1, 2, 4), torch.nan if index == 5 else 1.0)
        driver.call(index, total=12)
    reasons = driver.reasons()
    assert driver.computed() == [0, 1, 5, 6, 7, 11]
    assert (reasons[6], reasons[7]) == ("not-finite", "not-finite"), (
        "and again, against the step that was not finite"
    )
    assert dict(driver.counters.fallbacks) == {
        "what was compared was not a finite number; the step was computed": 2
    }


def test_without_a_number_of_steps_everything_is_computed_and_said():
    driver = start(0, codebook="fast")
    for index in range(4):
        driver.call(index)
    assert driver.computed() == [0, 1, 2, 3]
    assert driver.reasons()[2] == "unknown-steps"
    assert driver.counters.counts["host_syncs"] == 0
    assert list(driver.counters.fallbacks.values()) == [3]


def test_a_rule_that_needs_no_number_of_steps_goes_on_without():
    driver = start(0, **TWO, last=0)
    for index in range(6):
        driver.call(index)
    assert driver.computed() == [0, 1, 3, 5]


def test_too_few_steps_are_all_computed_and_said():
    driver = start(3, **TWO)
    assert driver.play(driver.view(3))["cond"] == [0, 1, 2]
    assert any("all 3 steps are computed" in text for text in driver.counters.fallbacks)
    driver = start(4, codebook="fast")
    assert driver.play(driver.view(4))["cond"] == [0, 1, 2, 3]
    assert any("every rate is at most 1" in text for text in driver.counters.fallbacks)
    assert not start(4, **TWO).counters.fallbacks


def test_threshold_zero_never_skips():
    driver = start(8, **{**TWO, "threshold": 0.0})
    assert driver.play(driver.view(8))["cond"] == list(range(8))
    assert driver.counters.counts["skipped"] == 0
    assert driver.reasons()[3] == "threshold"


def test_without_the_threshold_every_step_between_the_forced_ones_could_be_skipped():
    driver = start(12, thresholds=(1.0,), rates=(100,), motion=False)
    assert driver.play(driver.view(12))["cond"] == [0, 1, 11]


# --- cost -----------------------------------------------------------------------------------------------------------


def test_one_wait_per_computed_call_that_is_compared_and_none_per_skipped():
    driver = start(12, thresholds=(1.0,), rates=(3,), motion=True)
    seen = []
    for index in range(12):
        before = driver.counters.counts["host_syncs"]
        driver.call(index, total=12)
        seen.append((index, driver.counters.counts["host_syncs"] - before))
    assert driver.computed() == [0, 1, 4, 7, 10, 11]
    assert [index for index, waits in seen if waits == 1] == [2, 5, 8], "read where they are needed"
    assert {waits for _, waits in seen} == {0, 1}


def test_memory_is_two_hidden_tensors_and_a_distance_per_sample_and_branch():
    driver = start(12, **TWO)
    x = torch.ones(2, 6, 4)
    driver.signal = torch.ones(2, 6, 4)
    for index in range(4):
        for branch in ("cond", "uncond"):
            driver.call(index, x, branch=branch, total=12)
    held = list(driver.cache.held_tensors())
    assert sum(tensor.numel() for tensor in held) == 2 * (2 * x.numel() + 2)
    assert all(tensor.untyped_storage().nbytes() == tensor.numel() * 4 for tensor in held)


def test_what_is_kept_is_nobodys_buffer():
    driver = start(8, **TWO)
    for index in range(2):
        x, signal = torch.full((1, 2, 4), 2.0), torch.ones(1, 2, 4)
        driver.signal = signal
        y = driver.call(index, x, total=8)
        for tensor in (x, y, signal):
            tensor.fill_(99.0)
    out = driver.call(2, torch.zeros(1, 2, 4), total=8)
    assert torch.equal(out, torch.full((1, 2, 4), 3.0))
    out.fill_(99.0)
    driver.signal = torch.ones(1, 2, 4)
    driver.call(3, total=8)
    driver.call(4, total=8)
    assert driver.cache.events[-1].metric == 0.0, "the kept signal was written to"


@pytest.mark.parametrize("fails", [False, True])
def test_tensors_die_with_the_run(fails):
    driver = start(8, **TWO)
    for index in range(2):
        driver.call(index, total=8)
    gone = [weakref.ref(tensor) for tensor in driver.cache.held_tensors()]
    if fails:  # what it kept is dropped by the failure alone
        driver.blocks[2] = lambda x: 1 / 0
        with pytest.raises(ZeroDivisionError):
            driver.call(3, total=8)
    else:
        driver.cache.end()
    driver.signal = None
    gc.collect()
    assert gone
    assert not any(ref() is not None for ref in gone)


def test_the_report_says_what_the_run_was_decided_by():
    driver = start(15, codebook="fast", threshold=0.3)
    shown = driver.cache.evidence()
    assert shown["source"] == "codebook fast"
    assert shown["rates"] == [3, 2, 2, 1, 1, 1]
    assert (shown["block"], shown["motion"], shown["threshold"]) == (1, True, 0.3)
    assert isinstance(Driver().cache, AdaCache)
