"""Both techniques driven by hand: state per branch and expert, lifetimes, memory, and what is computed in doubt."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from taylor_fakes import BLOCKS, KINDS, Driver, cache

from wf_plugin_cache_taylorseer.blocks import BlockTaylorSeer
from wf_plugin_cache_taylorseer.memory import kept_bytes
from wf_plugin_cache_taylorseer.stack import TaylorSeer

both = pytest.mark.parametrize("kind", KINDS)
PER_HIDDEN_STATE = {"taylorseer": 1, "blocktaylorseer": 3 * BLOCKS}


def started(kind, total=9, experts=(), timesteps=(), **options):
    player = Driver(cache(kind, **options))
    counters = player.begin(player.view(timesteps or total, experts))
    return player, counters


def inputs(total=9, seed=0, tokens=2, batch=1, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, tokens, 4, generator=g).to(dtype) for _ in range(total)]


def outputs(player, values, branch="cond", **changes):
    return [
        player.call(index, value, branch=branch, total=len(values), **changes)
        for index, value in enumerate(values)
    ]


@both
def test_the_steps_and_their_reasons(kind):
    player, counters = started(kind, 10)
    outputs(player, inputs(10))
    assert player.computed() == [0, 4, 8, 9]
    rule = "interval" if kind == "taylorseer" else "pattern"
    assert player.reasons() == {
        0: "nothing-cached",
        9: "last-steps",
        **dict.fromkeys((4, 8), rule),
        **dict.fromkeys((1, 2, 3, 5, 6, 7), "between"),
    }
    assert (counters.counts["computed"], counters.counts["skipped"]) == (4, 6)
    assert not counters.fallbacks
    assert player.cache.evidence() == {"scheduled_skips_per_branch": 6}


@both
def test_the_first_steps_are_computed(kind):
    player, _ = started(kind, first=3)
    outputs(player, inputs())
    assert player.computed() == [0, 1, 2, 4, 8]
    assert player.reasons()[2] == "first-steps"


@both
@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_computed_step_is_untouched(kind, order):
    """Whatever is kept, what a computed step gives is what the model gives."""
    player, _ = started(kind, order=order)
    plain = Driver(cache(kind, every=1))
    plain.begin(plain.view(9))
    ours, theirs = outputs(player, inputs()), outputs(plain, inputs())
    assert plain.computed() == list(range(9))
    for index in range(9):
        assert torch.equal(ours[index], theirs[index]) == (index in player.computed()), index


@both
@pytest.mark.parametrize("names", [("cond", "uncond"), ("uncond", "cond")])
def test_branches_do_not_know_of_each_other(kind, names):
    """In either order of the calls each branch gives what it gives alone."""
    values = {name: inputs(seed=seed) for seed, name in enumerate(sorted(names))}
    player, counters = started(kind)
    got = {name: [] for name in names}
    for index in range(9):
        for name in names:
            got[name].append(player.call(index, values[name][index], branch=name, total=9))
    for name in names:
        alone, _ = started(kind)
        assert all(map(torch.equal, got[name], outputs(alone, values[name])))
        assert player.computed(name) == [0, 4, 8]
    assert counters.counts["skipped"] == 12


@both
def test_one_branch_of_nothing_but_nan_does_not_reach_the_other(kind):
    player, _ = started(kind)
    good, bad = inputs(), [torch.full_like(value, float("nan")) for value in inputs()]
    for index in range(9):
        assert player.call(index, bad[index], branch="uncond", total=9).isnan().all()
        assert player.call(index, good[index], branch="cond", total=9).isfinite().all()


@both
@pytest.mark.parametrize("order", [0, 1])
def test_after_nan_in_one_step_it_is_finite_again_once_the_kept_values_are(kind, order):
    """A fixed schedule looks at no value. What was computed of NaN is used until order + 1 newer steps are there."""
    player, _ = started(kind, 17, order=order)
    values = inputs(17)
    values[4] = torch.full_like(values[4], float("nan"))
    finite = [bool(output.isfinite().all()) for output in outputs(player, values)]
    poisoned = {4, 5, 6, 7} if order == 0 else {4, 5, 6, 7, 9, 10, 11}
    assert {index for index, good in enumerate(finite) if not good} == poisoned
    assert player.computed() == [0, 4, 8, 12, 16]


@both
def test_a_run_after_an_abort_equals_a_fresh_one(kind):
    player, _ = started(kind)
    outputs(player, inputs(seed=3)[:6])
    assert list(player.cache.held_tensors())
    player.cache.end()
    assert not list(player.cache.held_tensors())
    player.begin(player.view(9))
    fresh, _ = started(kind)
    assert all(map(torch.equal, outputs(player, inputs()), outputs(fresh, inputs())))


@both
def test_runs_of_other_lengths_and_sizes_follow_each_other(kind):
    player = Driver(cache(kind))
    for total, tokens in ((9, 2), (6, 5), (9, 2)):
        player.begin(player.view(total))
        assert not list(player.cache.held_tensors())
        fresh, _ = started(kind, total)
        values = inputs(total, tokens=tokens)
        assert all(map(torch.equal, outputs(player, values), outputs(fresh, values)))
        player.cache.end()


@both
@pytest.mark.parametrize("changed", [{"tokens": 3}, {"dtype": torch.float64}, {"batch": 2}])
def test_another_geometry_is_computed_and_starts_anew(kind, changed):
    player, _ = started(kind)
    player.call(0, inputs()[0], total=9)
    values = inputs(**changed)
    got = [player.call(index, values[index], total=9) for index in range(1, 5)]
    assert player.computed() == [0, 1, 4]
    assert player.reasons()[1] == "geometry-changed"
    assert all(output.shape == values[0].shape and output.dtype == values[0].dtype for output in got)
    kept = list(player.cache.held_tensors())
    assert {(tensor.shape, tensor.dtype) for tensor in kept} == {(values[0].shape, values[0].dtype)}


@both
def test_experts_start_computed_and_the_first_ones_tensors_go(kind):
    experts = ["transformer"] * 6 + ["transformer_2"] * 6
    player, _ = started(kind, experts=experts, timesteps=tuple(range(990, 870, -10)))
    values, gone = inputs(12), []
    for index, expert in enumerate(experts):
        for branch in ("cond", "uncond"):
            timestep = 990 - 10 * index
            player.call(index, values[index], timestep=timestep, branch=branch, expert=expert, total=12)
        if index == 5:
            gone = [weakref.ref(tensor) for tensor in player.cache.held_tensors()]
            assert len(gone) == 2 * 2 * PER_HIDDEN_STATE[kind]
        if index == 6:
            gc.collect()
            assert all(ref() is None for ref in gone)
    assert player.computed(expert="transformer") == [0, 4]
    assert player.computed(expert="transformer_2") == [6, 8, 11]
    assert player.reasons()[6] == "expert-start"


@both
def test_a_branch_that_was_not_called_at_a_computed_step_is_computed(kind):
    player, _ = started(kind, 10)
    values = inputs(10)
    for index in (0, 1, 5, 6, 7, 8, 9):
        player.call(index, values[index], total=10)
    assert player.computed() == [0, 5, 8, 9]
    assert player.reasons()[5] == "missed-step"


@both
def test_the_slope_after_a_missed_step_is_over_the_steps_there_were(kind):
    """Two samples at steps 0 and 5: outputs that grow by one a step are continued exactly."""
    player, _ = started(kind, 10)
    player.output = lambda index, role, y: torch.full_like(y, float(index))
    for index in (0, 5, 6):
        output = player.call(index, torch.zeros(1, 2, 4), total=10)
    assert player.computed() == [0, 5]
    assert torch.allclose(output, torch.full((1, 2, 4), 6.0 * 3 * BLOCKS))


@both
def test_a_call_off_the_schedule_is_computed_and_counted(kind):
    player, counters = started(kind, timesteps=tuple(range(990, 900, -10)))
    values = inputs()
    for index, timestep in ((0, 990), (1, 17.0)):
        player.call(index, values[index], timestep=timestep, total=9)
    assert player.computed() == [0, 1]
    assert player.reasons()[1] == "schedule-mismatch"
    assert sum(counters.fallbacks.values()) == 1


@both
def test_an_ambiguous_call_is_computed_and_nothing_is_kept(kind):
    player, counters = started(kind)
    values = inputs()
    for index in range(4):
        source = "ambiguous" if index == 2 else "ordinal"
        player.call(index, values[index], total=9, source=source)
        if index == 2:
            assert not list(player.cache.held_tensors())
            assert player.branches == 3 * BLOCKS
    assert player.computed() == [0, 2, 3]
    assert player.reasons()[3] == "nothing-cached"
    assert sum(counters.fallbacks.values()) == 1


@both
def test_without_a_number_of_steps_everything_is_computed_and_nothing_kept(kind):
    player, counters = started(kind, 0)
    outputs(player, inputs())
    assert player.computed() == list(range(9))
    assert set(player.reasons().values()) == {"unknown-steps"}
    assert sum(counters.fallbacks.values()) == 9
    assert not list(player.cache.held_tensors())


@both
@pytest.mark.parametrize(("total", "every", "last"), [(1, 4, 1), (2, 4, 1), (6, 1, 0), (3, 4, 3)])
def test_a_schedule_that_skips_nothing_is_said(kind, total, every, last):
    player, counters = started(kind, total, every=every, last=last)
    outputs(player, inputs(total))
    assert player.computed() == list(range(total))
    assert counters.counts["skipped"] == counters.counts["predicted_outputs"] == 0
    (sentence,) = counters.fallbacks
    assert f"all {total} steps" in sentence


@both
def test_a_batch_gives_what_its_samples_give_alone(kind):
    batch = inputs(batch=3)
    player, _ = started(kind)
    together = outputs(player, batch)
    for sample in range(3):
        alone, _ = started(kind)
        single = outputs(alone, [value[sample : sample + 1] for value in batch])
        assert all(
            torch.equal(one, many[sample : sample + 1]) for one, many in zip(single, together, strict=True)
        )


@both
def test_everything_stays_in_the_models_dtype(kind):
    player, _ = started(kind, order=2)
    values = inputs(dtype=torch.bfloat16)
    assert {output.dtype for output in outputs(player, values)} == {torch.bfloat16}
    assert {tensor.dtype for tensor in player.cache.held_tensors()} == {torch.bfloat16}


@both
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_memory_is_the_formulas(kind, order):
    """``order + 1`` hidden states per expert and branch, times three per block for the blocks; fewer before."""
    player, _ = started(kind, 20, order=order)
    values = inputs(20, tokens=5, batch=2)
    size = values[0].numel()
    for index in range(20):
        for branch in ("cond", "uncond"):
            player.call(index, values[index], branch=branch, total=20)
        held = list(player.cache.held_tensors())
        samples = min(order, index // 4 + (index == 19)) + 1
        assert len({tensor.untyped_storage().data_ptr() for tensor in held}) == len(held)
        elements = sum(tensor.untyped_storage().nbytes() for tensor in held) // 4
        assert elements == 2 * samples * size * PER_HIDDEN_STATE[kind]
    if kind == "blocktaylorseer":
        assert 4 * elements == kept_bytes(3 * BLOCKS, size, 4, order + 1, branches=2)


def test_another_length_of_text_is_computed_though_the_stack_does_not_show_it():
    player, _ = started("blocktaylorseer")
    plain = Driver(cache("blocktaylorseer", every=1))
    plain.begin(plain.view(9))
    for index, value in enumerate(inputs()[:9]):
        player.text = plain.text = 3 if index < 2 else 1
        output, dense = player.call(index, value, total=9), plain.call(index, value, total=9)
        if index == 2:
            assert torch.equal(output, dense) and player.branches == plain.branches
    assert player.computed() == [0, 2, 4, 8]
    assert player.reasons()[2] == "geometry-changed"


@both
@pytest.mark.parametrize("order", [0, 1])
def test_what_enters_and_leaves_the_stack_may_be_written_to(kind, order):
    """The outputs of branches may not: the kit checks of every family that nobody does."""
    player, _ = started(kind, order=order)
    fresh, _ = started(kind, order=order)
    for index, value in enumerate(inputs()):
        expected = fresh.call(index, value.clone(), total=9)
        output = player.call(index, value, total=9)
        assert torch.equal(output, expected), index
        for tensor in (value, output):
            tensor.fill_(1e9)


@both
@pytest.mark.parametrize("release", ["end", "close"])
def test_every_tensor_is_released(kind, release):
    player, _ = started(kind)
    outputs(player, inputs())
    kept = [weakref.ref(tensor) for tensor in player.cache.held_tensors()]
    assert len(kept) == 2 * PER_HIDDEN_STATE[kind]
    getattr(player.cache, release)()
    gc.collect()
    assert all(ref() is None for ref in kept)


@both
def test_every_tensor_is_released_after_an_exception(kind):
    player, _ = started(kind)
    player.raise_at = (4, 1)
    values = inputs()
    for index in range(4):
        player.call(index, values[index], total=9)
    kept = [weakref.ref(tensor) for tensor in player.cache.held_tensors()]
    assert kept
    with pytest.raises(RuntimeError, match="injected"):
        player.call(4, values[4], total=9)
    gc.collect()
    assert all(ref() is None for ref in kept)


def test_a_call_that_raised_half_way_is_never_predicted_from():
    """The driver goes on after the exception: blocks 1 and 2 have no sample of step 4, so step 5 is computed."""
    player, _ = started("blocktaylorseer")
    values = inputs()
    player.raise_at = (4, 1)
    for index in range(4):
        player.call(index, values[index], total=9)
    with pytest.raises(RuntimeError, match="injected"):
        player.call(4, values[4], total=9)
    player.call(5, values[5], total=9)
    player.call(6, values[6], total=9)
    assert player.computed() == [0, 5]
    assert player.reasons()[5] == "nothing-cached"
    assert len(list(player.cache.held_tensors())) == 3 * BLOCKS, (
        "the half of step 4 and all of step 0 are gone"
    )


def test_a_skipped_call_runs_no_norm_and_no_branch_and_counts_what_it_predicted():
    player, counters = started("blocktaylorseer")
    ran = []
    for index, value in enumerate(inputs()):
        player.call(index, value, total=9)
        ran.append((player.norms, player.branches))
    assert [index for index, counts in enumerate(ran) if counts == (9, 9)] == [0, 4, 8]
    assert [index for index, counts in enumerate(ran) if counts == (0, 0)] == [1, 2, 3, 5, 6, 7]
    assert counters.counts["predicted_outputs"] == 6 * 3 * BLOCKS


def test_outside_a_call_the_inner_seams_pass_through():
    player, counters = started("blocktaylorseer")
    player.ran.append([])
    for block in player.blocks:
        block(inputs()[0])
    assert (player.norms, player.branches) == (9, 9)
    assert not counters.counts


def test_a_block_that_was_not_there_at_the_computed_step_is_said():
    player, _ = started("blocktaylorseer")
    player.call(0, inputs()[0], total=9)
    player.blocks.append(type(player.blocks[0])(player, BLOCKS))
    with pytest.raises(RuntimeError, match=r"blocks\.3\.attn1 is called at step 1"):
        player.call(1, inputs()[1], total=9)


FACTS = {
    "device.memory_bytes": 80_000_000_000,
    "device.count": 1,
    "process.world": 1,
    "run.batch": 1,
    "run.tokens": 75_600,
    "model.family": "wan",
    "model.heads": 40,
    "model.head_dim": 128,
    "model.layers": 40,
    "model.vace_layers": (),
    "model.dtype": "bfloat16",
}
"""Wan 14B, 1280x720, 81 frames: 186 GB a branch."""


def refusal(order=1, total=50, branches=2, **changes):
    technique = BlockTaylorSeer((True, False, False, False), order)
    facts = {**FACTS, **{name.replace("__", "."): value for name, value in changes.items()}}
    return list(technique.check(Driver(technique).view(total, branches=branches, facts=facts)))


def test_what_cannot_fit_is_refused_with_the_numbers():
    (reason,) = refusal(branches=1)
    for number in ("185.8 GB", "120 outputs of blocks", "2 tensors of 774 MB", "1 branches", "80.0 GB"):
        assert number in reason
    (reason,) = refusal(model__vace_layers=tuple(range(0, 40, 5)))
    assert "144 outputs of blocks" in reason and "445.9 GB" in reason


def test_blocks_of_two_streams_have_two_outputs_of_that_size_and_those_of_one_stream_one():
    """HunyuanVideo, 20 and 40 blocks, 720p and 129 frames; its second generation has 54 of two streams alone."""
    size = {"model__family": "hunyuan", "run__tokens": 118_800, "model__heads": 24}
    (reason,) = refusal(branches=1, model__layers=20, model__single_layers=40, **size)
    assert "80 outputs of blocks" in reason and "116.8 GB" in reason
    (reason,) = refusal(model__layers=54, model__single_layers=0, **size)
    assert "108 outputs of blocks" in reason


def test_a_family_whose_blocks_are_not_known_is_not_judged():
    assert refusal() and refusal(model__family="cosmos")
    assert refusal(model__family="another") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"device__memory_bytes": 400_000_000_000},
        {"device__count": 8},
        {"device__memory_bytes": None},
        {"process__world": 2},
        {"run__tokens": None},
        {"model__dtype": "float8_e4m3fn"},
        {"run__tokens": 7_560},
    ],
)
def test_what_fits_or_is_not_known_is_not_refused(changes):
    assert refusal() != []
    assert refusal(**changes) == []


def test_as_many_tensors_are_counted_as_there_are_computed_steps():
    """Two of three steps are computed: order 3 keeps two tensors. A run that skips nothing is none of its business."""
    (reason,) = refusal(order=3, total=3)
    assert "2 tensors" in reason
    assert refusal(total=2) == []


def test_the_interval_may_start_at_a_later_step():
    player = Driver(TaylorSeer(3, first=3, last=0, start=1))
    player.begin(player.view(12))
    outputs(player, inputs(12))
    assert player.computed() == [0, 1, 2, 4, 7, 10]
