"""The technique driven by hand: schedules, state per branch and expert, lifetimes, and what is refused."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from teacache_fakes import Driver, Ramp, TimeEmbedding, driver, ramp_timesteps, settings
from teacache_vectors import SCHEDULES, coefficients, synthetic, timesteps_for, vector

from wf_lib_teacache.cache import TeaCache
from wf_lib_teacache.signals import row_distances

SYNTHETIC = {name: row for name, row in synthetic().items() if name.startswith("wan")}
EMBEDDING = TimeEmbedding()


def from_vector(preset, given):
    signal = "e0" if ".e0" in preset else "e"
    rule = settings(
        coefficients(preset),
        given["thresh"],
        signal=signal,
        first=given["retain_first"],
        last=given["retain_last"],
    )
    player = Driver(TeaCache(rule), EMBEDDING)
    return player, player.view(timesteps_for(given["d"], EMBEDDING.signal(signal)))


def test_row_distances_distance():
    case = vector("tea.rel_l1")
    current, previous = (
        torch.tensor([case["inputs"][name]], dtype=torch.float64) for name in ("cur", "prev")
    )
    assert row_distances(current, previous) == pytest.approx([case["expected"]["d"]], abs=case["tolerance"])
    assert row_distances(torch.ones(1, 4), torch.zeros(1, 4)) == pytest.approx([1e6])


@pytest.mark.parametrize("name", SCHEDULES)
def test_vector_through_the_technique(name):
    case = vector(name)
    player, run = from_vector(case["inputs"]["preset"], case["inputs"])
    player.begin(run)
    computed = player.play(run, ("cond", "uncond"))
    assert computed == dict.fromkeys(("cond", "uncond"), case["expected"]["compute_steps"])


@pytest.mark.parametrize("preset", SYNTHETIC)
def test_full_length_vector_through_the_technique(preset):
    row = SYNTHETIC[preset]
    player, run = from_vector(preset, row)
    counters = player.begin(run)
    assert player.play(run)["cond"] == row["compute_steps"]
    assert counters.counts == {"computed": row["computed"], "skipped": row["N"] - row["computed"]}
    assert player.inner_calls == row["computed"]


def test_leaving_the_domain_is_refused_before_the_first_call():
    case = vector("tea.domain.failure")["inputs"]
    player, run = from_vector(case["preset"], case)
    (reason,) = player.cache.check(run)
    for part in ("step 5 of 10", "d=0.2,", "e0", "-28.1", "below -0.1"):
        assert part in reason
    assert player.inner_calls == 0


@pytest.mark.parametrize(("later", "told"), [(0.1, True), (2.0, False)], ids=["once", "again"])
def test_a_fault_in_the_first_steps_names_the_setting_that_leaves_them_out(later, told):
    player = driver(coefficients=(-1.0, 0.5), threshold=1.0)
    run = player.view(ramp_timesteps([0, 2.0, 0.1, later, 0.1, 0.1]))
    (reason,) = player.cache.check(run)
    assert "step 1 of 6" in reason
    assert ("with first=2" in reason) == told
    if told:
        mended = driver(coefficients=(-1.0, 0.5), threshold=1.0, first=2)
        run = mended.view(run.timesteps)
        mended.begin(run)
        assert {0, 1} <= set(mended.play(run)["cond"]) < set(range(6))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_signal_that_is_not_finite_is_refused(bad):
    player = driver(threshold=0.5)
    timesteps = ramp_timesteps([0, 0.1, 0.1, 0.1, 0.1])
    run = player.view((*timesteps[:2], bad, *timesteps[3:]))
    (reason,) = player.cache.check(run)
    assert "step 2 of 5" in reason
    assert "no longer a finite number" in reason


def test_residual_is_added_again():
    case = vector("tea.reuse")
    x0, y0, x1 = (torch.tensor([[v]]) for v in case["inputs"].values())
    player = driver(threshold=0.5)
    run = player.view(ramp_timesteps([0, 0.1, 0.1]))
    player.begin(run)
    player.bias = y0 - x0
    assert torch.equal(player.at(0, run.timesteps[0], x0), y0)
    (residual,) = player.cache.held_tensors()
    assert residual.flatten().tolist() == case["expected"]["residual"]
    y1 = player.at(1, run.timesteps[1], x1)
    assert y1.flatten().tolist() == case["expected"]["x_out_step1"]
    assert player.inner_calls == 1
    assert residual.flatten().tolist() == case["expected"]["residual"]


def test_residual_keeps_the_blocks_dtype():
    player = driver(threshold=0.5)
    run = player.view(ramp_timesteps([0, 0.1, 0.1]))
    player.begin(run)
    x = torch.randn(1, 2, 4, dtype=torch.bfloat16)
    outputs = [player.at(i, run.timesteps[i], x) for i in (0, 1)]
    assert [tensor.dtype for tensor in player.cache.held_tensors()] == [torch.bfloat16]
    assert [output.dtype for output in outputs] == [torch.bfloat16] * 2


def test_branches_keep_their_own_residual():
    player = driver(threshold=10.0)
    run = player.view(ramp_timesteps([0] + [0.1] * 5))
    player.begin(run)
    biases = {"cond": 3.0, "uncond": -7.0}
    for index, timestep in enumerate(run.timesteps[:-1]):
        for branch, bias in biases.items():
            player.bias = bias if index == 0 else 1e9
            output = player.at(index, timestep, branch=branch)
            assert torch.equal(output, torch.ones(1, 2, 4) + bias), (index, branch)
    assert player.inner_calls == 2
    assert len(list(player.cache.held_tensors())) == 2


def test_experts_have_their_own_state_and_start_dense():
    experts = ["transformer"] * 4 + ["transformer_2"] * 4
    signals = {"transformer": Ramp(), "transformer_2": Ramp()}
    player = driver(signals, threshold=10.0)
    run = player.view(ramp_timesteps([0] + [0.1] * 7), experts)
    player.begin(run)
    assert player.play(run, ("cond", "uncond")) == {"cond": [0, 4, 7], "uncond": [0, 4, 7]}
    assert player.reasons()[4] == "expert-start"
    assert [ramp.calls for ramp in signals.values()] == [1, 1], "each expert's own embedder, once"


def test_first_and_last_count_over_both_experts():
    experts = ["transformer"] * 4 + ["transformer_2"] * 4
    player = driver(threshold=10.0, first=2, last=2)
    run = player.view(ramp_timesteps([0] + [0.1] * 7), experts)
    player.begin(run)
    assert player.play(run)["cond"] == [0, 1, 4, 6, 7]
    assert player.reasons() == {
        0: "first-steps",
        1: "first-steps",
        2: "below-threshold",
        3: "below-threshold",
        4: "expert-start",
        5: "below-threshold",
        6: "last-steps",
        7: "last-steps",
    }


def test_max_skip_is_counted_per_branch():
    player = driver(threshold=10.0, max_skip=2)
    run = player.view(ramp_timesteps([0] + [0.01] * 8))
    counters = player.begin(run)
    assert player.play(run, ("cond", "uncond"))["uncond"] == [0, 3, 6, 8]
    assert counters.counts["max_skip_cuts"] == 4


def test_a_second_run_starts_clean_whatever_its_size():
    player = driver(threshold=10.0)
    outputs = []
    for total, tokens in ((6, 2), (3, 5), (6, 2)):
        run = player.view(ramp_timesteps([0] + [0.1] * (total - 1)))
        counters = player.begin(run)
        assert list(player.cache.held_tensors()) == []
        x = torch.arange(tokens * 4.0).reshape(1, tokens, 4)
        outputs.append([player.at(i, t, x) for i, t in enumerate(run.timesteps)])
        assert player.computed() == [0, total - 1]
        assert counters.counts == {"computed": 2, "skipped": total - 2}
        player.cache.end()
    assert all(map(torch.equal, outputs[0], outputs[2]))


def test_a_run_after_an_abort_starts_clean():
    player = driver(threshold=10.0)
    run = player.view(ramp_timesteps([0] + [0.1] * 5))
    player.begin(run)
    for index in range(3):
        player.at(index, run.timesteps[index])
    player.cache.end()
    assert list(player.cache.held_tensors()) == []
    player.begin(run)
    player.bias = 5.0
    assert player.play(run)["cond"] == [0, 5]
    assert player.reasons()[0] == "first-steps"


def test_end_and_close_release_every_tensor():
    for release in ("end", "close"):
        player = driver(threshold=10.0)
        run = player.view(ramp_timesteps([0] + [0.1] * 5))
        player.begin(run)
        player.play(run, ("cond", "uncond"))
        seen = [weakref.ref(tensor) for tensor in player.cache.held_tensors()]
        assert len(seen) == 2
        getattr(player.cache, release)()
        gc.collect()
        assert [ref() for ref in seen] == [None, None]
        assert list(player.cache.held_tensors()) == []


def test_another_shape_within_a_run_is_computed():
    player = driver(threshold=10.0)
    run = player.view(ramp_timesteps([0] + [0.1] * 5))
    player.begin(run)
    sizes = [2, 2, 3, 3]
    for index, tokens in enumerate(sizes):
        output = player.at(index, run.timesteps[index], torch.ones(1, tokens, 4))
        assert output.shape == (1, tokens, 4)
    assert player.reasons() == {
        0: "first-steps",
        1: "below-threshold",
        2: "geometry-changed",
        3: "below-threshold",
    }


def test_a_step_computed_by_the_runtime_starts_the_sum_anew():
    case = vector("tea.force")
    given, expected = case["inputs"], case["expected"]
    rule = settings(coefficients(given["preset"]), given["thresh"])
    for force in (False, True):
        player = Driver(TeaCache(rule), EMBEDDING)
        run = player.view(timesteps_for(given["d"], EMBEDDING.signal("e")))
        player.begin(run)
        for index, timestep in enumerate(run.timesteps):
            tokens = 3 if force and index >= given["forced"][0] else 2
            player.at(index, timestep, torch.ones(1, tokens, 4))
        assert player.computed() == expected["compute_with_force" if force else "compute_without_force"]


def test_a_branch_that_is_called_in_an_interval_only():
    player = driver(threshold=0.35)
    run = player.view(ramp_timesteps([0] + [0.1] * 9))
    player.begin(run)
    for index, timestep in enumerate(run.timesteps):
        player.at(index, timestep, branch="cond")
        if 3 <= index <= 7:
            player.at(index, timestep, branch="uncond")
    assert player.computed("cond") == [0, 4, 8, 9]
    assert player.computed("uncond") == [3, 7]
    assert (player.reasons("uncond")[3], player.reasons("uncond")[7]) == ("nothing-cached", "threshold")


def test_a_branch_that_missed_a_computed_step_does_not_use_what_is_older():
    player = driver(threshold=0.35)
    run = player.view(ramp_timesteps([0] + [0.1] * 9))
    player.begin(run)
    for index in (0, 1, 5, 6, 7, 8, 9):  # steps 2 to 4 without this branch; step 4 was to be computed
        player.at(index, run.timesteps[index])
    assert player.computed() == [0, 5, 9]
    assert player.reasons()[5] == "missed-step"


@pytest.mark.parametrize(
    "wrong", [{"timestep": 17.0}, {"expert": "transformer_2"}, {"index": 99}, {"timestep": float("nan")}]
)
def test_a_call_off_the_schedule_is_computed_and_counted(wrong):
    player = driver(threshold=10.0)
    run = player.view(ramp_timesteps([0] + [0.1] * 5))
    counters = player.begin(run)
    for index in (0, 1):
        player.at(index, run.timesteps[index])
        player.at(index, run.timesteps[index], expert="transformer_2")
    player.at(**{"index": 2, "timestep": run.timesteps[2], **wrong})
    assert player.cache.events[-1].computed
    assert player.cache.events[-1].reason == "schedule-mismatch"
    (count,) = counters.fallbacks.values()
    assert count == 3, "two calls of an expert that was not scheduled, and the last one"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_timesteps_rounded_to_another_dtype_are_on_schedule(dtype):
    player = driver(threshold=10.0)
    run = player.view((999.0, 963.0, 921.0, 874.0))
    player.begin(run)
    for index, timestep in enumerate(run.timesteps):
        player.at(index, torch.full((1,), timestep, dtype=dtype))
    assert player.computed() == [0, 3]


def test_per_token_timesteps_are_read_at_their_maximum():
    player = driver(threshold=10.0)
    run = player.view((999.0, 963.0, 921.0, 874.0))
    counters = player.begin(run)
    for index, timestep in enumerate(run.timesteps):
        player.at(index, torch.tensor([[0.0, 0.0, timestep, timestep]]))
    assert player.computed() == [0, 3]
    assert not counters.fallbacks


def test_an_ambiguous_call_is_computed_and_leaves_nothing_to_reuse():
    player = driver(threshold=10.0)
    run = player.view(ramp_timesteps([0] + [0.1] * 6))
    counters = player.begin(run)
    for index, timestep in enumerate(run.timesteps):
        player.at(index, timestep, source="ambiguous" if index == 2 else "ordinal")
    assert player.computed() == [0, 2, 3, 6]
    assert player.reasons()[3] == "nothing-cached"
    assert sum(counters.fallbacks.values()) == 1


def test_batch_of_several_samples():
    player = driver(threshold=10.0)
    run = player.view(ramp_timesteps([0, 0.1, 0.1]))
    player.begin(run)
    x = torch.randn(3, 2, 4)
    player.bias = torch.arange(3.0)[:, None, None]
    player.at(0, run.timesteps[0], x)
    assert torch.allclose(player.at(1, run.timesteps[1], 2 * x), 2 * x + player.bias)


@pytest.mark.parametrize(("total", "first", "last"), [(1, 1, 1), (2, 1, 1), (4, 5, 0)])
def test_too_few_steps_to_skip_any_is_said(total, first, last):
    player = driver(threshold=10.0, first=first, last=last)
    run = player.view(ramp_timesteps([0] + [0.1] * (total - 1)))
    counters = player.begin(run)
    assert player.play(run)["cond"] == list(range(total))
    assert counters.counts == {"computed": total}
    (sentence,) = counters.fallbacks
    assert f"all {total} steps are computed" in sentence


def test_the_schedule_is_made_once_and_a_step_evaluates_nothing():
    player = driver(threshold=10.0)
    run = player.view(ramp_timesteps([0] + [0.1] * 9))
    player.begin(run)
    assert player.modulation.calls == 1, "check and begin share one evaluation"
    player.play(run, ("cond", "uncond"))
    assert player.modulation.calls == 1


def test_the_checked_schedule_is_not_used_for_another_run():
    player = driver(threshold=10.0)
    short, long = (player.view(ramp_timesteps([0] + [0.1] * n)) for n in (3, 6))
    player.begin(short)
    player.cache.end()
    assert not list(player.cache.check(short))
    player.cache.begin(long)
    assert player.play(long)["cond"] == [0, 6]


def test_no_device_is_waited_for_when_the_timestep_is_not_on_the_host():
    player = driver(threshold=10.0)
    run = player.view(ramp_timesteps([0, 0.1, 0.1]))
    player.begin(run)
    elsewhere = torch.empty(1, device="meta")  # reading its value would raise
    for index in range(3):
        player.at(index, elsewhere)
    assert player.computed() == [0, 2]


def test_evidence_names_origin_and_schedule():
    rule = settings(threshold=10.0, lent="lent by a test", r2=0.5, domain=(0.05, 0.15))
    player = Driver(TeaCache(rule), Ramp())
    run = player.view(ramp_timesteps([0, 0.1, 0.2, 0.1, 0.1]))
    player.begin(run)
    shown = player.cache.evidence()
    assert shown["decisions"] == "static"
    assert (shown["uncalibrated"], shown["r2"]) == ("lent by a test", 0.5)
    assert (shown["scheduled_skips_per_branch"], shown["steps_outside_fit"]) == (3, 1)
