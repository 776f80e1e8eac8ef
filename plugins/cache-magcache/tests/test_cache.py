"""The feature on the core's runtime, driven by hand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from magcache_vectors import BRANCHES, arrays, driver, facts, falling, label, two_experts, vector

from wf_core.testing import CacheDriver
from wf_plugin_cache_magcache.cache import MagCache
from wf_plugin_cache_magcache.settings import settle

FLAT = (1.0, *[0.999] * 5)  # only the longest run of skips cuts: 0 and 3 are computed
VECTOR_SCHEDULES = [name for name in vector("mag.sched")["expected"] if "diffusers" not in name]


def of_preset(name, **options):
    return CacheDriver(MagCache(settle(options, facts(name))))


def of_array(name, **options):
    ratios = arrays(name)
    given = {"ratios": tuple(ratios["cond"]), "ratios_uncond": tuple(ratios["uncond"]), **options}
    return CacheDriver(MagCache(settle(given, facts())))


# --- the vectors, through the technique ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", VECTOR_SCHEDULES)
def test_full_schedules(name):
    row = vector("mag.sched")["expected"][name]
    array, options = label(name)
    cache = of_array(array, **options)
    run = cache.view(falling(row["N"]))
    cache.begin(run)
    found = cache.play(run, BRANCHES)
    wanted = {branch: row.get(f"{branch}_compute", row.get("compute")) for branch in BRANCHES}
    assert found == wanted
    assert cache.counters.counts["computed"] == sum(map(len, wanted.values()))
    assert cache.cache.evidence()["scheduled_skips"] == {b: row["N"] - len(wanted[b]) for b in BRANCHES}


@pytest.mark.parametrize("steps", [20, 30, 40])
def test_schedules_at_another_number_of_steps(steps):
    row = vector("mag.interp.sched")["expected"][str(steps)]
    cache = of_preset("wan2.1-t2v-1.3b")
    run = cache.view(falling(steps))
    cache.begin(run)
    assert cache.play(run, BRANCHES) == {branch: row[f"{branch}_compute"] for branch in BRANCHES}
    shown = cache.cache.evidence()
    assert shown["interpolated"] == {"transformer": {"from": 50, "to": steps}}
    assert shown["start"] == {"transformer": row["start_step"]}
    assert ("notes" in shown) == (steps == 20)


@pytest.mark.parametrize("name", vector("mag.wan22")["expected"])
def test_two_experts(name):
    row = vector("mag.wan22")["expected"][name]
    array, options = label(name)
    high, total = row["high_noise_steps"], row["N"]
    cache = of_preset(array, **options)
    run = cache.view(falling(total), two_experts(high, total - high))
    cache.begin(run)
    found = cache.play(run, BRANCHES)
    assert found == {branch: row[f"recommended_{branch}"] for branch in BRANCHES}
    assert cache.reasons()[high] == "expert-start"
    start = cache.cache.evidence()["start"]
    assert ("transformer" in start) == (row["mode"] == "t2v")


def test_what_is_added_between_the_blocks_is_not_added_again():
    """vace.double: the residual spans the whole stack, hints included."""
    inputs = zip([0.5, 0.4, 0.1, 0.2], [0.3, 0.0, 0.2, 0.0], strict=True)
    blocks = [lambda x, f=f, hint=hint: x + f + hint for f, hint in inputs]
    cache = driver(FLAT, blocks)
    run = cache.view(6, branches=1)
    cache.begin(run)
    dense, skipped = (float(cache.call(i, torch.ones(1, 2, 4), total=6)[0, 0, 0]) for i in (0, 1))
    assert dense == pytest.approx(vector("vace.double")["expected"]["dense"], abs=1e-6)
    assert skipped == pytest.approx(vector("vace.double")["expected"]["skip_correct"], abs=1e-6)
    assert cache.ran == [[0, 1, 2, 3], []]


# --- state per branch and expert ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [BRANCHES, BRANCHES[::-1]])
def test_each_branch_follows_its_own_ratios_in_either_order(order):
    cache = driver((1.0, *[0.99] * 7), ratios_uncond=(1.0, *[0.9] * 7), threshold=0.055, max_skip=9)
    run = cache.view(falling(8))
    cache.begin(run)
    cache.play(run, order)
    assert cache.computed("cond") == [0, 3, 6]
    assert cache.computed("uncond") == list(range(8))


def test_a_poisoned_branch_does_not_reach_the_other():
    cache = driver(FLAT, [lambda x: x * 2.0])
    run = cache.view(6)
    cache.begin(run)
    for index in range(6):
        good = cache.call(index, branch="cond", total=6)
        assert torch.isfinite(good).all()
        bad = cache.call(index, torch.full((1, 2, 4), float("nan")), branch="uncond", total=6)
        assert torch.isnan(bad).all()


def test_a_step_that_is_not_finite_does_not_change_the_schedule():
    cache = driver(FLAT)
    run = cache.view(6, branches=1)
    cache.begin(run)
    for index in range(6):
        value = torch.full((1, 2, 4), float("nan") if index == 3 else 1.0)
        out = cache.call(index, value, total=6)
        assert torch.isnan(out).any() == (index in (3, 4, 5))  # what was kept at step 3 is added at 4 and 5
    assert cache.computed() == [0, 3]


def test_the_first_experts_tensors_are_let_go_at_the_change():
    cache = driver(FLAT, high_noise_steps=3)
    run = cache.view(falling(6), two_experts(3, 3), branches=1)
    cache.begin(run)
    for index, expert in enumerate(run.experts):
        cache.call(index, expert=expert, timestep=run.timesteps[index], total=6)
        assert len(list(cache.cache.held_tensors())) == 1
    assert cache.computed(expert="transformer") == [0]
    assert cache.computed(expert="transformer_2") == [3]


def test_ratios_without_a_split_are_shared_out_as_the_run_is():
    cache = of_array("wan2.2-t2v-a14b", threshold=0.04)
    run = cache.view(falling(40), two_experts(26, 14))
    cache.begin(run)
    recommended = vector("mag.wan22")["expected"]["wan2.2-t2v-a14b|E0.04K2R0.2"]["recommended_cond"]
    assert cache.play(run)["cond"] == recommended


def test_ratios_of_two_experts_need_the_experts_to_be_known():
    cache = driver(FLAT, high_noise_steps=3)
    run = cache.view(6, branches=1)
    cache.begin(run)
    assert cache.play(run)["cond"] == list(range(6))
    assert sum(count for text, count in cache.counters.fallbacks.items() if "two experts" in text) == 6


def test_each_expert_is_interpolated_for_itself():
    cache = of_preset("wan2.2-t2v-a14b")
    run = cache.view(falling(20), two_experts(13, 7))
    cache.begin(run)
    found = cache.play(run)["cond"]
    assert {0, 13} <= {*found}
    assert cache.cache.evidence()["interpolated"] == {
        "transformer": {"from": 26, "to": 13},
        "transformer_2": {"from": 14, "to": 7},
    }


# --- runs that are not as planned ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7, 4999])
def test_any_number_of_steps_runs(steps):
    """One step has nothing to skip: computed, with an entry in the report."""
    cache = of_preset("wan2.1-t2v-1.3b", threshold=0.5)
    run = cache.view(falling(steps), branches=1)
    cache.begin(run)
    found = cache.play(run)["cond"]
    assert found[0] == 0 and (len(found) < steps or steps == 1)
    assert any("steps are computed:" in text for text in cache.counters.fallbacks) == (steps == 1)


def test_an_unknown_number_of_steps_is_computed_and_said():
    cache = driver(FLAT)
    cache.begin(cache.view(0, branches=1))
    for index in range(4):
        cache.call(index)
    assert cache.computed() == [0, 1, 2, 3]
    assert cache.counters.fallbacks.total() == 4
    assert "scheduled_skips" not in cache.cache.evidence()
    assert not list(cache.cache.held_tensors())


def test_a_missed_step_is_noticed():
    cache = driver(FLAT)
    run = cache.view(6, branches=1)
    cache.begin(run)
    for index in (0, 1, 2, 4, 5):  # step 3 was to be computed
        cache.call(index, total=6)
    assert cache.computed() == [0, 4]
    assert cache.reasons()[4] == "missed-step"


def test_another_size_is_computed_and_starts_anew():
    cache = driver(FLAT)
    run = cache.view(6, branches=1)
    cache.begin(run)
    for index in range(6):
        cache.call(index, torch.ones(1, 2 if index < 1 else 3, 4), total=6)
    assert cache.computed() == [0, 1, 4]
    assert cache.reasons()[1] == "geometry-changed"


def test_a_call_that_cannot_be_placed_is_computed_and_drops_what_was_kept():
    cache = driver(FLAT)
    run = cache.view(6, branches=1)
    cache.begin(run)
    cache.call(0, total=6)
    cache.call(1, total=6, source="ambiguous")
    assert not list(cache.cache.held_tensors())
    cache.call(2, total=6)
    assert cache.computed() == [0, 1, 2]


def test_a_run_that_broke_off_leaves_nothing_for_the_next():
    cache = driver(FLAT, [lambda x: x + 1.0])
    run = cache.view(6, branches=1)
    cache.begin(run)
    cache.call(0, total=6)
    cache.call(1, total=6)
    cache.begin(run)
    assert not list(cache.cache.held_tensors())
    assert cache.play(run)["cond"] == [0, 3]


def test_after_an_exception_everything_is_released():
    def fails(x):
        raise RuntimeError("the block fails")

    cache = driver(FLAT)
    run = cache.view(6, branches=1)
    cache.begin(run)
    cache.call(0, total=6)
    (kept,) = cache.cache.held_tensors()
    kept = weakref.ref(kept)
    cache.blocks[:] = [fails]
    with pytest.raises(RuntimeError, match="the block fails"):
        cache.call(3, total=6)
    cache.cache.end()
    gc.collect()
    assert kept() is None and not list(cache.cache.held_tensors())


# --- tensors ------------------------------------------------------------------------------------------------------


def test_what_is_kept_aliases_nothing_of_the_models():
    cache = driver(FLAT, [lambda x: x * 3.0])
    run = cache.view(6, branches=1)
    cache.begin(run)
    x = torch.ones(1, 2, 4)
    y = cache.call(0, x, total=6)
    x.fill_(7.0)
    y.fill_(9.0)
    first = cache.call(1, torch.ones(1, 2, 4), total=6)
    assert torch.equal(first, torch.full((1, 2, 4), 3.0))
    first.fill_(5.0)
    assert torch.equal(cache.call(2, torch.ones(1, 2, 4), total=6), torch.full((1, 2, 4), 3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_hidden_state_is_kept_per_branch(dtype):
    """Section 14 of the reference: T elements per branch and expert, in the blocks' dtype."""
    cache = driver(FLAT)
    run = cache.view(6)
    cache.begin(run)
    for branch in BRANCHES:
        cache.call(0, torch.ones(3, 5, 8, dtype=dtype), branch=branch, total=6)
    held = list(cache.cache.held_tensors())
    assert sum(tensor.nbytes for tensor in held) == 2 * 3 * 5 * 8 * dtype.itemsize
    assert cache.call(1, torch.ones(3, 5, 8, dtype=dtype), total=6).dtype == dtype


def test_a_batch_is_decided_as_a_whole_and_each_sample_keeps_its_own():
    cache = driver(FLAT, [lambda x: x * 2.0])
    run = cache.view(6, branches=1)
    cache.begin(run)
    value = torch.stack([torch.full((2, 4), 1.0), torch.full((2, 4), 10.0)])
    cache.call(0, value, total=6)
    out = cache.call(1, value, total=6)
    assert torch.equal(out, value * 2.0)


def test_the_same_input_again_gives_the_same_output():
    cache = driver(FLAT, [lambda x: x * 1.7 + 0.3])
    run = cache.view(6, branches=1)
    cache.begin(run)
    value = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    dense, skipped = (cache.call(i, value, total=6) for i in (0, 1))
    assert torch.equal(skipped, value + (dense - value))


def test_a_threshold_of_zero_computes_all_and_keeps_the_outputs():
    cache = driver(FLAT, [lambda x: x * 1.7], threshold=0.0)
    run = cache.view(6, branches=1)
    counters = cache.begin(run)
    for index in range(6):
        value = torch.full((1, 2, 4), float(index))
        assert torch.equal(cache.call(index, value, total=6), value * 1.7)
    assert cache.computed() == list(range(6))
    assert counters.counts["skipped"] == 0
    assert any("steps are computed:" in text for text in counters.fallbacks)


# --- the report ---------------------------------------------------------------------------------------------------


def test_the_reasons_and_the_cuts():
    cache = driver((1.0, 0.99, 0.99, 0.99, 0.99, 0.5), force_last=True, retention_ratio=0.34)
    run = cache.view(falling(6), branches=1)
    counters = cache.begin(run)
    cache.play(run)
    assert cache.reasons() == {
        0: "nothing-cached",
        1: "first-steps",
        2: "below-threshold",
        3: "below-threshold",
        4: "max-skip",
        5: "last-steps",
    }
    assert counters.counts["max_skip_cuts"] == 1


def test_the_evidence_of_a_lent_preset():
    known = facts(
        "wan2.1-vace-14b", request__allow_uncalibrated=True, pipeline__class="WanVideoToVideoPipeline"
    )
    cache = CacheDriver(MagCache(settle({}, known)))
    run = cache.view(falling(50))
    cache.begin(run)
    shown = cache.cache.evidence()
    assert shown["source"] == "preset wan2.1-t2v-14b" and "borrows" in shown["uncalibrated"]
    assert (shown["threshold"], shown["max_skip"], shown["start"]) == (0.12, 2, {"transformer": 10})
    assert shown["scheduled_skips"] == {"cond": 25, "uncond": 25}
    assert shown["interpolated"] == {}
    assert len(shown["notes"]) == 1
