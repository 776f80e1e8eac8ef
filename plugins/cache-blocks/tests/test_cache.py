"""The caches driven by hand: reference vectors, what is kept, and lifetimes."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from blocks_by_hand import LAYERS, VARIANTS, Blocks, Curved, Driver, driver, make, value, vector, warm_up

from wf_plugin_cache_blocks.rule import Verdict

BRANCHES = ("cond", "uncond")
every = pytest.mark.parametrize("variant", VARIANTS)
PROBES = ("firstblock", "dualblock")


def held(player):
    return list(player.cache.held_tensors())


# --- reference vectors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["computed", "previous"])
def test_first_block_schedules_through_the_technique(reference):
    case = vector("fb.sched")
    model = Blocks([0.0, 1.0])
    player = driver(
        "firstblock", model, case["inputs"]["threshold"], reference=reference, downsample_factor=1
    )
    counters = player.begin(player.view(10))
    for step, residual in enumerate(case["inputs"]["first_block_residual"]):
        model.f[0] = residual
        for branch in BRANCHES:
            player.call(step, torch.zeros(1, 2, 4), branch=branch, total=10)
    wanted = case["expected"][f"{reference}_compute"]
    assert {branch: player.computed(branch) for branch in BRANCHES} == dict.fromkeys(BRANCHES, wanted)
    assert [step for step in range(10) if player.ran[2 * step] == [0, 1]] == wanted
    assert counters.counts["host_syncs"] == 2 * 9, "once per call that has something to compare with"


def test_a_tie_is_computed_by_the_technique():
    assert vector("fb.boundary")["inputs"]["diff"] == vector("fb.boundary")["inputs"]["thr"]
    for threshold, computed in ((0.5, [0, 1]), (0.500001, [0])):
        model = Blocks([1.0, 1.0])
        player = driver("firstblock", model, threshold)
        player.begin(player.view(2))
        for step, residual in enumerate((1.0, 1.5)):  # exact in binary
            model.f[0] = residual
            player.call(step, torch.zeros(1, 2, 4), total=2)
        assert player.computed() == computed


@pytest.mark.parametrize("layers", [30, 40])
def test_dual_partition_through_the_technique(layers):
    row = vector("dual.partition")["expected"][str(layers)]
    player = driver("dualblock", Blocks([0.1] * layers), front_blocks=5, tail_blocks=5)
    counters = player.begin(player.view(2))
    player.play(player.view(2))
    first, last = row["middle"]
    assert player.ran == [list(range(layers)), [*range(first), *range(last + 1, layers)]]
    assert counters.counts["blocks_skipped"] == row["cached_blocks"]
    assert [event.share for event in player.cache.events] == [1.0, 10 / layers]


def test_per_block_schedule_through_the_technique():
    """dyn is of the mode of LightX2V: every block compares its own input, with the one of the step before."""
    case = vector("dyn")
    model = Blocks([0.0] * 3)
    player = driver("dynamicblock each", model, case["inputs"]["threshold"], reference="previous")
    counters = player.begin(player.view(4))
    for step, x in enumerate(case["inputs"]["x_in"]):
        model.f = [constant + slope * step for constant, slope in case["inputs"]["f"]]
        output = player.call(step, torch.full((1, 1, 2), float(x)), total=4)
        assert player.ran[-1] == [
            k for k, computed in enumerate(case["expected"]["computed"][step]) if computed
        ]
        assert output.flatten().tolist() == pytest.approx([case["expected"]["x_out"][step]] * 2, abs=2e-6)
    assert counters.counts == {
        "computed": 2, "skipped": 2, "blocks_computed": 6, "blocks_skipped": 6, "host_syncs": 9
    }  # fmt: skip


HINTED = ("firstblock", "dynamicblock", "dynamicblock each")


@pytest.mark.parametrize("variant", HINTED)
def test_hints_between_blocks_are_added_once(variant):
    """vace.double: with the same input a skipped call gives what the computed one gave."""
    case = vector("vace.double")
    hints = {int(k): v for k, v in case["inputs"]["hints"].items()}
    player = Driver(make(variant), Blocks(case["inputs"]["f"]), hints)
    player.begin(player.view(4))
    x = torch.full((1, 1, 2), case["inputs"]["x"], dtype=torch.float64)
    outputs = [player.call(step, x, total=4).flatten()[0].item() for step in range(4)]
    assert outputs == pytest.approx([case["expected"]["skip"]] * 4, abs=1e-9)
    assert case["expected"]["dense"] == case["expected"]["skip"] != case["expected"]["doubled"]
    assert player.computed() == list(range(warm_up(variant)))


@pytest.mark.parametrize(
    ("variant", "options"),
    [("firstblock", {}), ("dualblock", {"front_blocks": 1, "tail_blocks": 1}), ("dualblock", {}),
     ("dynamicblock", {}), ("dynamicblock each", {})],
)  # fmt: skip
def test_a_skipped_call_adds_the_hints_of_its_own_step(variant, options):
    """Hints after every block, of both parts and on their borders: only what the blocks added is kept."""
    hints = dict.fromkeys(range(LAYERS), 0.0)
    player = Driver(make(variant, **options), Blocks([0.5, 0.4, 0.1, 0.2, 0.3]), hints)
    player.begin(player.view(4))
    x = torch.ones(1, 1, 2, dtype=torch.float64)
    for step in range(4):
        hints.update({k: (step + 1) * 10.0**-k for k in hints})
        wanted = 1.0 + 1.5 + sum(hints.values())
        assert player.call(step, x, total=4).flatten().tolist() == pytest.approx([wanted] * 2, abs=1e-9)
    assert player.computed() == list(range(warm_up(variant)))


def test_without_hints_the_residual_costs_one_subtraction():
    """The tensors between blocks are identical objects: the sum of one piece is that piece."""
    from wf_plugin_cache_blocks.probe import Added

    added, x = Added(), [torch.full((1, 1, 2), float(i * i)) for i in range(4)]
    for entered, output in itertools.pairwise(x):
        added.block(entered, output)
    total = added.total()
    assert torch.equal(total, x[3] - x[0])
    other = Added()
    for entered, output in itertools.pairwise(x):
        other.block(entered.clone(), output)
    assert torch.equal(other.total(), total)


# --- decisions ------------------------------------------------------------------------------------------------------


@every
def test_a_threshold_of_zero_is_the_plain_model(variant):
    player = driver(variant, threshold=0.0)
    counters = player.begin(player.view(4))
    for step in range(4):
        x = value(step // 2)
        assert torch.equal(player.call(step, x, total=4), player.model.dense(x))
    assert counters.counts["computed"] == 4
    assert "skipped" not in counters.counts
    assert counters.counts["blocks_skipped"] == 0


@every
def test_always_similar_is_computed_exactly_where_it_must_be(variant):
    player = driver(variant, first=3, last=2)
    run = player.view(9)
    player.begin(run)
    assert player.play(run, BRANCHES) == {branch: [0, 1, 2, 7, 8] for branch in BRANCHES}
    reasons = dict.fromkeys(range(3, 7), "below-threshold") | {7: "last-steps", 8: "last-steps"}
    assert {step: reason for step, reason in player.reasons().items() if step > 2} == reasons


@every
def test_the_same_input_gives_the_same_output_when_it_is_skipped(variant):
    player = driver(variant)
    player.begin(player.view(6))
    x = value()
    for step in range(6):
        output = player.call(step, x, total=6)
        assert torch.allclose(output, player.model.dense(x), atol=1e-6)
    assert player.computed() == list(range(warm_up(variant)))


@every
@pytest.mark.parametrize(
    "order", [BRANCHES, BRANCHES[::-1], ("cond",)], ids=["cond first", "uncond first", "one"]
)
def test_at_most_one_skip_in_a_row(variant, order):
    """cache-dit#1114. Counted from the blocks that ran, not from the cache's own log."""
    player = driver(variant, first=4, max_skip=1)
    run = player.view(19)
    counters = player.begin(run)
    player.play(run, order)
    for at, branch in enumerate(order):
        ran = player.ran[at :: len(order)]
        assert [step for step in range(19) if len(ran[step]) < LAYERS] == [4, 6, 8, 10, 12, 14, 16, 18]
        assert sorted(set(range(19)) - set(player.computed(branch))) == [4, 6, 8, 10, 12, 14, 16, 18]
    assert counters.counts["max_skip_cuts"] == 7 * len(order)


def test_a_blocks_input_is_continued_from_what_it_measured_at_the_last_call():
    """One block; its input rises by 0.04 a step and the threshold is 0.1."""
    x = [1.0 + 0.04 * step for step in range(10)]
    for reference, wanted in (("computed", [0, 1, 4, 7]), ("previous", [0, 1])):
        player = driver("dynamicblock", Blocks([1.0]), 0.1, reference=reference)
        counters = player.begin(player.view(10))
        for step in range(10):
            player.call(step, torch.full((1, 1, 2), x[step]), total=10)
        assert player.computed() == wanted
        assert counters.counts["host_syncs"] == 8, "once per call that can be decided"
    # The estimate at step 4: measured at step 3, two steps after the input kept at step 1, continued to three steps.
    player = driver("dynamicblock", Blocks([1.0]), 0.1)
    player.begin(player.view(10))
    for step in range(5):
        player.call(step, torch.full((1, 1, 2), x[step]), total=10)
    assert player.cache.events[4].metric == pytest.approx((x[3] - x[1]) / x[1] / 2 * 3, rel=1e-4)


def test_blocks_decide_alone():
    """Only the first block's input stands still: it alone is skipped, and the call counts as skipped."""
    model = Blocks([0.0, 0.0, 0.0])
    player = driver("dynamicblock each", model, 0.01)
    counters = player.begin(player.view(3))
    for step in range(3):
        model.f[0] = 0.0
        player.hints = {0: float(step)}
        player.call(step, torch.ones(1, 1, 2), total=3)
    assert player.ran == [[0, 1, 2], [1, 2], [1, 2]]
    assert player.computed() == [0]
    assert counters.counts["blocks_skipped"] == 2
    assert player.cache.events[1].share == pytest.approx(2 / 3)


@every
def test_the_device_is_asked_once_per_call_and_never_where_nothing_is_decided(variant):
    player = driver(variant, first=2, last=1)
    run = player.view(8)
    counters = player.begin(run)
    player.play(run, BRANCHES)
    per_call = LAYERS if variant == "dynamicblock each" else 1
    assert counters.counts["host_syncs"] == per_call * 2 * 5


@every
def test_a_batch_is_decided_by_its_worst_sample(variant):
    def computed(values):
        player = driver(variant, threshold=0.1, reference="previous")
        player.begin(player.view(5))
        for step, x in enumerate(values):
            player.call(step, x, total=5)
        return player.computed()

    still = [torch.ones(1, 2, 8)] * 5
    moving = [torch.ones(1, 2, 8) * 2.0 ** (step * (-1) ** step) for step in range(5)]
    assert computed(still) == list(range(warm_up(variant)))
    assert computed(moving) == [0, 1, 2, 3, 4]
    crowd = [torch.cat([*[a] * 30, b]) for a, b in zip(still, moving, strict=True)]
    assert computed(crowd) == [0, 1, 2, 3, 4]


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_computed_and_told(variant, bad):
    player = driver(variant)
    counters = player.begin(player.view(9))
    x = value()
    for step in range(9):
        output = player.call(step, x * bad if step == 4 else x, total=9)
        if step > 5:
            assert torch.allclose(output, player.model.dense(x), atol=1e-6), step
    wanted = {"dynamicblock": [0, 1, 5], "dynamicblock each": [0, 4, 5]}.get(variant, [0, 4, 5])
    late = [step for step in player.computed() if step in wanted]
    assert late == wanted
    assert {player.reasons()[step] for step in wanted[warm_up(variant) :]} == {"not-finite"}
    assert any("finite" in sentence for sentence in counters.fallbacks)
    assert 8 not in player.computed()


@every
def test_an_unknown_number_of_steps_is_computed_and_told(variant):
    player = driver(variant, last=1)
    counters = player.begin(player.view(0))
    for step in range(4):
        player.call(step, value())
    assert player.computed() == [0, 1, 2, 3]
    assert player.reasons()[3] == "unknown-steps"
    assert sum(counters.fallbacks.values()) >= 3
    free = driver(variant, last=0)
    free.begin(free.view(0))
    for step in range(4):
        free.call(step, value())
    assert free.computed() == list(range(warm_up(variant)))


@every
def test_too_few_steps_to_skip_any_is_told_and_is_the_plain_model(variant):
    player = driver(variant, first=3, last=1)
    run = player.view(4)
    counters = player.begin(run)
    for step in range(4):
        x = value(step)
        assert torch.equal(player.call(step, x, total=4), player.model.dense(x))
    assert counters.counts["computed"] == 4 and "skipped" not in counters.counts
    ((sentence, count),) = counters.fallbacks.items()
    assert count == 1 and "all 4 steps are computed" in sentence


@every
def test_an_ambiguous_call_is_computed_and_drops_what_was_kept(variant):
    player = driver(variant)
    counters = player.begin(player.view(8))
    for step in range(4):
        player.call(step, value(), total=8)
    assert held(player)
    x = value(9)
    assert torch.equal(player.call(4, x, total=8, source="ambiguous"), player.model.dense(x))
    assert player.ran[-1] == list(range(LAYERS)) and held(player) == []
    player.call(5, value(), total=8)
    assert player.reasons()[4] == "ambiguous-identity" and player.reasons()[5] == "nothing-cached"
    assert len(counters.fallbacks) == 1


@every
def test_a_branch_that_is_left_out_for_some_steps(variant):
    """A guidance interval: uncond is called at steps 3 to 5 and 8, cond at all; each is decided as if it were alone."""
    together, alone = driver(variant, threshold=0.3), driver(variant, threshold=0.3)
    for player, branches in ((together, BRANCHES), (alone, ("cond",))):
        player.begin(player.view(9))
        for step in range(9):
            for branch in branches:
                if branch == "cond" or step in (3, 4, 5, 8):
                    player.call(step, value() * (1 + 0.1 * step), branch=branch, total=9)
    assert together.computed("cond") == alone.computed("cond")
    assert together.reasons("uncond")[3] == "nothing-cached"
    assert set(together.reasons("uncond")) == {3, 4, 5, 8}


def test_a_missed_step_counts_in_the_continuation():
    player = driver("dynamicblock", Blocks([1.0]), 0.1)
    player.begin(player.view(9))
    for step, x in ((0, 1.0), (1, 1.04), (4, 1.16)):
        player.call(step, torch.full((1, 1, 2), x), total=9)
    assert player.computed() == [0, 1, 4], "0.04 in one step is 0.12 in three"


# --- branches, experts, sizes ---------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("order", [BRANCHES, BRANCHES[::-1]], ids=["cond first", "uncond first"])
def test_branches_know_nothing_of_each_other(variant, order):
    """Poison: after each call of cond everything that uncond keeps is overwritten by NaN."""

    def play(branches, poison):
        player = driver(variant, threshold=0.5)
        player.begin(player.view(6))
        outputs = []
        for step in range(6):
            for branch in branches:
                x = value(int(branch == "uncond")) * (1 + 0.05 * step)
                output = player.call(step, x, branch=branch, total=6)
                if branch == "cond":
                    outputs.append(output)
                if poison and branch == "uncond":
                    for tensor in player.cache._states["transformer", "uncond"].held():
                        tensor.fill_(float("nan"))
        return outputs, player.computed("cond")

    alone, computed = play(("cond",), False)
    poisoned, computed_too = play(order, True)
    assert computed == computed_too and len(computed) < 6
    assert all(map(torch.equal, alone, poisoned))


@every
def test_experts_start_computed_and_leave_nothing_behind(variant):
    experts = ["transformer"] * 5 + ["transformer_2"] * 5
    player = driver(variant)
    run = player.view([float(t) for t in range(10, 0, -1)], experts)
    player.begin(run)
    for step in range(5):
        for branch in BRANCHES:
            player.call(step, value(), branch=branch, expert="transformer", total=10)
    refs = [weakref.ref(tensor) for tensor in held(player)]
    assert refs
    for step in range(5, 10):
        for branch in BRANCHES:
            player.call(step, value(), branch=branch, expert="transformer_2", total=10)
        assert not [ref for ref in refs if ref() is not None], step
    warm = warm_up(variant)
    assert player.computed() == [*range(warm), *range(5, 5 + warm)]
    assert {key[0] for key in player.cache._states} == {"transformer_2"}


@every
def test_another_size_within_a_run_is_computed(variant):
    player = driver(variant)
    player.begin(player.view(8))
    for step in range(8):
        x = value(tokens=3 if step < 4 else 5)
        assert torch.allclose(player.call(step, x, total=8), player.model.dense(x), atol=1e-6)
    assert player.reasons()[4] == "geometry-changed"
    assert player.computed() == [*range(warm_up(variant)), *range(4, 4 + warm_up(variant))]


@every
def test_a_second_run_starts_clean_whatever_its_size(variant):
    player = driver(variant, last=1)
    outputs = []
    for total, tokens in ((6, 2), (4, 5), (6, 2)):
        run = player.view(total)
        player.begin(run)
        assert held(player) == []
        outputs.append([player.call(step, value(step, tokens=tokens), total=total) for step in range(total)])
        assert player.computed() == [*range(warm_up(variant)), total - 1]
        player.cache.end()
    assert all(map(torch.equal, outputs[0], outputs[2]))


@every
def test_a_model_whose_experts_differ_in_depth_is_followed_as_it_is(variant):
    """The facts tell one depth. What was kept between the wrong blocks would be wrong: it is not used."""
    player = driver(variant)
    player.facts = type(player.facts).of({"model.blocks": 4}, "test")  # it has five
    player.begin(player.view(6))
    x = value()
    for step in range(6):
        assert torch.allclose(player.call(step, x, total=6), player.model.dense(x), atol=1e-6)
    assert 5 not in player.computed()


@every
def test_a_model_of_unknown_depth_is_measured_by_its_first_call(variant):
    player = driver(variant)
    player.facts = type(player.facts)()
    player.begin(player.view(6))
    x = value()
    for step in range(6):
        assert torch.allclose(player.call(step, x, total=6), player.model.dense(x), atol=1e-6)
    assert 5 not in player.computed()
    assert player.computed() == ([0, 1] if variant.startswith("dual") else list(range(warm_up(variant))))


def test_a_model_without_blocks_to_skip_is_refused():
    player = driver("dualblock", front_blocks=3, tail_blocks=2)
    (reason,) = player.cache.check(player.view(6, facts={"model.blocks": 5}))
    assert "first 3" in reason and "last 2 of 5" in reason and "front_blocks" in reason
    assert not list(player.cache.check(player.view(6, facts={"model.blocks": 6})))
    (reason,) = driver("firstblock").cache.check(player.view(6, facts={"model.blocks": 1}))
    assert "front_blocks" not in reason, "firstblock has no such option"


@pytest.mark.parametrize("front", [3, 7])
def test_a_model_that_turns_out_to_have_no_blocks_to_skip_is_plain_and_told(front):
    player = driver("dualblock", front_blocks=front, tail_blocks=2)
    player.facts = type(player.facts)()
    counters = player.begin(player.view(4))
    for step in range(4):
        assert torch.equal(player.call(step, value(), total=4), player.model.dense(value()))
    assert "skipped" not in counters.counts
    assert len(counters.fallbacks) == (front < LAYERS)


# --- what is kept ---------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_that_of_the_formula(variant, factor, dtype):
    """Per branch: a hidden state T and one of sub-sampled channels T'; dynamicblock has both for every block.

    A call of dynamicblock that computes all blocks keeps what goes between them, which is one hidden state more.
    """
    player = driver(variant, downsample_factor=factor)
    player.begin(player.view(5))
    for step in range(5):
        for branch in BRANCHES:
            player.call(step, value(batch=2, dtype=dtype), branch=branch, total=5)
        size = torch.empty(0, dtype=dtype).element_size()
        whole, part = 2 * 3 * 8 * size, 2 * 3 * -(-8 // factor) * size
        dynamic = variant.startswith("dynamic")
        blocks = LAYERS if dynamic else 1
        distances = 4 * LAYERS if variant == "dynamicblock" and 0 < step < 4 else 0
        sums = 4 * 2 * LAYERS if variant == "dynamicblock" else 0
        between = whole if dynamic and step < warm_up(variant) else 0
        found = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held(player)
        }
        assert sum(found.values()) == 2 * (blocks * (whole + part) + between + sums + distances)


@pytest.mark.parametrize("computed", ["C.C.C.C.", "CC.CCC..", "CCCCCCCC", ".C.CC...", "........"])
def test_memory_is_one_state_more_for_every_row_of_blocks_that_were_computed(computed):
    """A block that is computed between two that are not keeps what it added, as those do."""
    player = driver("dynamicblock", Blocks([0.1] * 8))
    player.begin(player.view(6))
    for step in range(2):
        player.call(step, value(), total=6)
    (state,) = player.cache._states.values()
    decide = state.decide

    def decided(step, hidden_states):
        decision = decide(step, hidden_states)
        verdicts = [
            Verdict(sign == "C", "threshold" if sign == "C" else "below-threshold", 0.5) for sign in computed
        ]
        state.verdicts = dict(enumerate(verdicts))
        return decision

    state.decide = decided
    player.call(2, value(), total=6)
    blocks = {
        tensor.untyped_storage().data_ptr() for block in state._blocks.values() for tensor in block.held()
    }
    rows = [row for row in computed.split(".") if len(row) > 1]
    assert len(blocks) == 8 + len(rows)


@pytest.mark.parametrize("reference", ["computed", "previous"])
def test_blocks_are_compared_the_same_one_by_one_and_together(reference, monkeypatch):
    found = []
    for together in (0, 2 * 2 * 3 * 4, 2**21):  # alone, in twos, all
        monkeypatch.setattr("wf_plugin_cache_blocks.comparison.TOGETHER", together)
        player = driver("dynamicblock", threshold=0.3, reference=reference)
        player.begin(player.view(12))
        generator = torch.Generator().manual_seed(1)
        noise = [value(batch=2) + 0.2 * torch.randn(2, 3, 8, generator=generator) for _ in range(12)]
        outputs = [player.call(step, noise[step], total=12) for step in range(12)]
        found.append(
            (player.reasons(), [event.metric for event in player.cache.events], torch.stack(outputs))
        )
    for reasons, metrics, outputs in found[1:]:
        assert reasons == found[0][0] and metrics == found[0][1]
        assert torch.equal(outputs, found[0][2])
    assert "below-threshold" in found[0][0].values() and "threshold" in found[0][0].values()


@pytest.mark.parametrize(("variant", "since"), [("dynamicblock", 2), ("dynamicblock each", 3)])
def test_nothing_is_kept_of_a_call_that_no_skipped_one_follows(variant, since):
    player = driver(variant, first=4, last=3)
    player.begin(player.view(9))
    kept = []
    for step in range(9):
        player.call(step, value(), total=9)
        kept.append([tensor.data_ptr() for tensor in held(player)])
    assert next(step for step in range(9) if kept[step]) == since
    assert player.computed() == [0, 1, 2, 3, 6, 7, 8]
    assert kept[5] == kept[6] == kept[7] == kept[8], "nothing new once the last steps are computed anyway"


@every
def test_the_kept_residual_is_used_as_it_was(variant):
    """In bf16 a residual that is derived anew from each skipped call drifts; this one stays the same tensor's."""
    player = driver(variant)
    player.begin(player.view(9))
    x = value(dtype=torch.bfloat16) * 10
    outputs = [player.call(step, x, total=9) for step in range(9)]
    warm = warm_up(variant)
    assert {output.dtype for output in outputs} == {torch.bfloat16}
    assert all(torch.equal(output, outputs[warm]) for output in outputs[warm:])
    drift = (outputs[-1].float() - player.model.dense(x).float()).abs().max()
    assert drift <= 0.125, "one rounding of the residual, whose hidden states are below 32"


@every
def test_nothing_kept_aliases_the_models_buffers(variant):
    def play(overwrite):
        player = driver(variant)
        player.begin(player.view(5))
        outputs = []
        for step in range(5):
            x = value(step)
            output = player.call(step, x, total=5)
            outputs.append(output.clone())
            if overwrite:
                x.fill_(1e6)
                output.fill_(1e6)
        return outputs, player.computed(), [event.metric for event in player.cache.events]

    kept, written = play(False), play(True)
    assert all(map(torch.equal, kept[0], written[0]))
    assert kept[1:] == written[1:]


@every
def test_everything_dies_with_the_run(variant):
    player = driver(variant)
    for finish in (player.cache.end, player.cache.close):
        player.begin(player.view(5))
        for step in range(4):
            player.call(step, value(), total=5)
        refs = [weakref.ref(tensor) for tensor in held(player)]
        assert refs
        finish()
        gc.collect()
        assert not [ref for ref in refs if ref() is not None]
        assert held(player) == []


class Boom(Exception):
    """What a block of the next test raises."""


def boom(x):
    raise Boom


@every
@pytest.mark.parametrize(("step", "at"), [(0, 0), (0, 2), (0, LAYERS - 1), (3, 0), (3, 1)])
def test_a_call_that_raises_leaves_nothing_half_done(variant, step, at):
    """In a computed call and in a skipped one; the run may go on, and another may begin."""
    player = driver(
        variant, max_skip=3 - warm_up(variant)
    )  # step 3 of dynamicblock is computed, so that it can raise
    player.begin(player.view(8))
    for earlier in range(step):
        player.call(earlier, value(), total=8)
    refs = [weakref.ref(tensor) for tensor in held(player)]
    usual, player.blocks[at] = player.blocks[at], boom
    with pytest.raises(Boom):
        player.call(step, value(), total=8)
    gc.collect()
    assert held(player) == [] and not [ref for ref in refs if ref() is not None]
    player.blocks[at] = usual
    x = value(4)
    assert torch.equal(player.call(step + 1, x, total=8), player.model.dense(x))
    assert player.reasons()[step + 1] == "nothing-cached"
    player.cache.end()
    run = player.view(8)
    player.begin(run)
    assert player.play(run)["cond"][0] == 0


@pytest.mark.parametrize("variant", PROBES)
def test_a_skipped_call_that_raises_in_a_block_that_always_runs(variant):
    player = driver(variant)
    player.begin(player.view(8))
    for step in range(3):
        player.call(step, value(), total=8)
    assert player.computed() == [0]
    usual, player.blocks[0] = player.blocks[0], boom
    with pytest.raises(Boom):
        player.call(3, value(), total=8)
    player.blocks[0] = usual
    x = value(4)
    assert torch.equal(player.call(4, x, total=8), player.model.dense(x))


def test_a_block_outside_of_a_call_is_left_alone():
    from wf_core.api import Site

    cache = make("firstblock")
    x = value()
    assert torch.equal(cache.handlers()["block"](lambda x: x + 1, Site("block", index=3), x), x + 1)


@every
def test_the_report_says_what_differences_were_seen(variant):
    player = driver(variant, threshold=0.0)
    player.begin(player.view(8))
    assert player.cache.evidence() == {}
    for step in range(8):
        player.call(step, value() * (1 + 0.01 * step), total=8)
    found = player.cache.evidence()["differences"]
    per_call = LAYERS if variant.startswith("dynamic") else 1
    assert found["count"] == per_call * (8 - warm_up(variant))
    assert 0 < found["p10"] <= found["p50"] <= found["p90"]


def test_the_curved_model_tells_a_wrong_residual_from_a_right_one():
    """The tests above compare with it: what its blocks add depends on what they are given."""
    x = value()
    model = Curved()
    first = model.functions()[0](x)
    assert not torch.allclose(first + (model.dense(x) - x), model.dense(x), atol=1e-2)
