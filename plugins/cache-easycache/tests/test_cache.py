"""The cache by hand: who leads, what is kept, what is released."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch

from wf_core.testing import CacheDriver
from wf_plugin_cache_easycache.cache import EasyCache
from wf_plugin_cache_easycache.rule import Settings

BOTH = ("cond", "uncond")
SHAPE = (1, 2, 3, 4)
LATENT = 24


def latent(step, shape=SHAPE, scale=0.01):
    """A latent that moves by ``scale`` of a fixed direction in each step."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=g) + step * scale * torch.randn(shape, generator=g)


def easy(blocks=(lambda x: 0.5 * x + 1.0,), **settings):
    return CacheDriver(EasyCache(Settings(**{"threshold": 10.0, "first": 2, "last": 1, **settings})), blocks)


def play(driver, total=8, branches=BOTH, value=latent, experts=(), known=None):
    """Every step of a run; the outputs, by branch."""
    counters = driver.begin(driver.view(total if known is None else known, experts=experts))
    outputs = {branch: [] for branch in branches}
    for step in range(total):
        expert = experts[step] if experts else "transformer"
        for branch in branches:
            x = value(step)
            outputs[branch].append(driver.call(step, x, branch=branch, expert=expert, total=total))
    return counters, outputs


def computed_of(driver):
    return {branch: driver.computed(branch) for branch in BOTH}


def test_a_follower_does_what_the_first_branch_of_the_step_decided():
    driver = easy()
    counters, _ = play(driver)
    assert computed_of(driver) == {"cond": [0, 1, 7], "uncond": [0, 1, 7]}
    assert driver.reasons("cond")[3] == "below-threshold"
    assert driver.reasons("uncond") == {
        **dict.fromkeys((0, 1, 7), "leader-computed"),
        **dict.fromkeys(range(2, 7), "leader-skipped"),
    }
    assert counters.counts == {"computed": 6, "skipped": 10, "host_syncs": 5}


def test_each_branch_is_predicted_from_its_own_output():
    branch = "cond"
    driver = easy([lambda x: 0.5 * x + (1.0 if branch == "cond" else -3.0)])
    driver.begin(driver.view(6))
    for step in range(4):
        for branch in BOTH:
            out = driver.call(step, latent(step), branch=branch, total=6)
            if step == 3:
                bias = 1.0 if branch == "cond" else -3.0
                anchored = latent(3) + (0.5 * latent(1) + bias - latent(1))
                assert torch.allclose(out, anchored, atol=1e-6)


def test_poison_in_a_follower_does_not_reach_the_leader():
    branch = "cond"
    driver = easy([lambda x: x * (math.nan if branch == "uncond" else 0.5)])
    counters = driver.begin(driver.view(6))
    for step in range(6):
        for branch in BOTH:
            out = driver.call(step, latent(step), branch=branch, total=6)
            assert bool(out.isfinite().all()) == (branch == "cond")
    assert driver.computed("cond") == [0, 1, 5]
    assert not counters.fallbacks


def test_branches_called_in_the_other_order_decide_alike():
    one, other = easy(threshold=0.02), easy(threshold=0.02)
    _, first = play(one, 12)
    _, second = play(other, 12, branches=BOTH[::-1])
    assert computed_of(one) == computed_of(other)
    assert 3 < len(one.computed("cond")) < 12
    assert all(
        torch.equal(a, b) for branch in BOTH for a, b in zip(first[branch], second[branch], strict=True)
    )


def test_another_leader_measures_anew():
    """A rate is never made from two branches' outputs: the new leader's first two steps are computed."""
    driver = easy()
    driver.begin(driver.view(9))
    for step in range(9):
        for branch in BOTH if step < 4 else BOTH[::-1]:
            driver.call(step, latent(step), branch=branch, total=9)
    assert driver.computed("uncond") == [0, 1, 4, 5, 8]
    assert driver.computed("cond") == [0, 1, 4, 5, 8]
    assert (driver.reasons("uncond")[4], driver.reasons("uncond")[5]) == ("leader-changed", "rate-unknown")


def test_a_leader_that_comes_back_measures_anew_too():
    driver = easy()
    driver.begin(driver.view(12))
    for step in range(12):
        for branch in BOTH[::-1] if step in (4, 5, 6) else BOTH:
            driver.call(step, latent(step), branch=branch, total=12)
    assert driver.computed("cond") == driver.computed("uncond") == [0, 1, 4, 5, 7, 8, 11]
    assert driver.reasons("cond")[7] == "leader-changed"


def test_without_guidance_the_one_branch_leads():
    driver = easy()
    play(driver, branches=("cond",))
    assert driver.computed() == [0, 1, 7]


def test_a_branch_that_comes_late_is_computed_once():
    """A guidance interval: the second branch is called from step 3 on, and decides nothing."""
    driver = easy()
    driver.begin(driver.view(8))
    for step in range(8):
        for branch in BOTH if step >= 3 else ("cond",):
            driver.call(step, latent(step), branch=branch, total=8)
    assert driver.computed("cond") == [0, 1, 7]
    assert driver.computed("uncond") == [3, 7]
    assert driver.reasons("uncond")[3] == "nothing-cached"


def test_a_follower_that_missed_a_computed_step_is_computed():
    driver = easy(max_skip=2)
    counters = driver.begin(driver.view(12))
    for step in range(12):
        for branch in BOTH if step not in (3, 4) else ("cond",):
            driver.call(step, latent(step), branch=branch, total=12)
    assert driver.computed("cond") == [0, 1, 4, 7, 10, 11]
    assert driver.computed("uncond") == [0, 1, 5, 7, 10, 11]
    assert driver.reasons("uncond")[5] == "missed-step"
    assert driver.reasons("cond")[4] == "max-skip"
    assert counters.counts["max_skip_cuts"] == 3


def test_steps_that_the_driver_leaves_out_count_with_the_way_that_the_latent_came():
    whole, gaps = easy(threshold=0.05), easy(threshold=0.05)
    for driver, steps in ((whole, range(12)), (gaps, (0, 1, 2, 4, 6, 8, 11))):
        driver.begin(driver.view(12))
        for step in steps:
            driver.call(step, latent(step, scale=0.02), total=12)
    metric = {e.step: e.metric for e in whole.cache.events}
    with_gaps = {e.step: e.metric for e in gaps.cache.events}
    assert with_gaps[4] == pytest.approx(metric[4], rel=1e-4)


def test_experts_keep_their_own_and_the_first_one_is_released():
    driver = easy(first=0, last=0)
    experts = ("high",) * 5 + ("low",) * 5
    driver.begin(driver.view(tuple(float(t) for t in range(10)), experts=experts))
    seen = []
    for step, expert in enumerate(experts):
        for branch in BOTH:
            driver.call(step, latent(step), branch=branch, expert=expert, total=10)
            if step == 4:
                seen = [weakref.ref(tensor) for tensor in driver.cache.held_tensors()]
            if step == 5:
                gc.collect()
                assert [ref() for ref in seen] == [None] * len(seen)
    assert len(seen) == 5 + 2, "five of a latent's size, and rate and sum of the branch that leads"
    assert computed_of(driver) == {"cond": [0, 1, 5, 6], "uncond": [0, 1, 5, 6]}
    assert (driver.reasons()[0], driver.reasons()[5], driver.reasons()[6]) == (
        "nothing-cached",
        "nothing-cached",
        "rate-unknown",
    )


def test_a_threshold_of_zero_never_skips():
    driver = easy(threshold=0.0, first=0, last=0)
    counters, outputs = play(driver, value=lambda step: torch.ones(SHAPE))
    assert counters.counts["skipped"] == 0
    assert all(torch.equal(out, torch.full(SHAPE, 1.5)) for out in outputs["cond"])


def test_any_threshold_computes_the_forced_steps_and_no_others():
    driver = easy(threshold=1e30, first=3, last=2)
    play(driver, 10)
    assert driver.computed() == [0, 1, 2, 8, 9]
    assert driver.reasons()[0] == "first-steps" and driver.reasons()[9] == "last-steps"


def test_identical_input_with_a_hit_gives_the_computed_output():
    driver = easy()
    _, outputs = play(driver, value=lambda step: latent(0))
    assert driver.computed() == [0, 1, 7]
    assert all(torch.allclose(out, outputs["cond"][0], atol=1e-6) for out in outputs["cond"])


def test_what_is_kept_does_not_alias_what_the_model_was_given_or_gave():
    driver = easy()
    driver.begin(driver.view(8))
    outputs = []
    for step in range(8):
        x = latent(step)
        out = driver.call(step, x, total=8)
        outputs.append(out.clone())
        x.fill_(1e6)
        out.fill_(-1e6)
    clean = easy()
    _, expected = play(clean, branches=("cond",))
    assert driver.computed() == clean.computed() == [0, 1, 7]
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected["cond"], strict=True))


def test_a_prediction_leaves_alone_what_is_kept():
    driver = easy()
    driver.begin(driver.view(8))
    for step in range(4):
        driver.call(step, latent(step), total=8)
    again = [driver.call(4, latent(4), total=8).clone() for _ in range(2)]
    assert torch.equal(*again)


def test_a_batch_is_decided_by_its_worst_sample():
    """Sample 0 stands still, sample 1 moves: alone they skip and compute, together they compute."""

    def moving(step):
        return latent(step, scale=0.3)

    def together(step):
        return torch.cat([latent(0), moving(step)])

    runs = {}
    for name, value in (("still", lambda step: latent(0)), ("moving", moving), ("both", together)):
        driver = easy(threshold=0.1, first=0)
        play(driver, 12, value=value)
        runs[name] = driver.computed()
    assert runs["still"] == [0, 1, 11]
    assert 3 < len(runs["moving"]) < 12
    assert runs["both"] == runs["moving"]


def test_a_sample_is_predicted_as_it_is_alone():
    driver = easy()
    _, both = play(driver, value=lambda step: torch.cat([latent(step), 2 * latent(step)]))
    _, alone = play(easy())
    assert all(torch.equal(b[:1], a) for b, a in zip(both["cond"], alone["cond"], strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_latent_that_is_not_finite_is_computed_and_counted(bad):
    driver = easy(first=0)
    value = lambda step: torch.full(SHAPE, bad) if step == 4 else latent(step)  # noqa: E731
    counters, outputs = play(driver, 12, value=value)
    # 4 is bad; 5 is compared with it; after two good computed steps there is a rate again.
    assert driver.computed() == [0, 1, 4, 5, 6, 11]
    assert {driver.reasons()[step] for step in (4, 5, 6)} == {"not-finite"}
    assert sum(counters.fallbacks.values()) == 3
    assert all(out.isfinite().all() for out in outputs["cond"][5:])
    assert all(event.metric is None or math.isfinite(event.metric) for event in driver.cache.events)


def test_one_bad_sample_of_a_batch_is_enough():
    driver = easy(first=0)
    value = lambda step: torch.cat([latent(step), latent(step) * (math.nan if step == 4 else 1)])  # noqa: E731
    play(driver, 6, value=value)
    assert driver.reasons()[4] == "not-finite"


def test_bf16_outputs_stay_bf16_and_are_within_its_rounding():
    driver = easy()
    _, outputs = play(driver, value=lambda step: latent(step).bfloat16())
    _, exact = play(easy())
    assert driver.computed() == [0, 1, 7]
    for ours, wanted in zip(outputs["cond"], exact["cond"], strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours - wanted).abs().max() <= 0.02 * wanted.abs().max()


def test_an_output_of_another_dtype_than_the_latent_is_kept_to():
    driver = easy([lambda x: (0.5 * x).bfloat16()])
    _, outputs = play(driver)
    assert {out.dtype for out in outputs["cond"]} == {torch.bfloat16}


def test_another_size_in_the_middle_is_computed_and_measured_anew():
    driver = easy(first=0, last=0)
    value = lambda step: latent(step, SHAPE if step < 4 else (1, 2, 5, 4))  # noqa: E731
    play(driver, 9, value=value)
    assert computed_of(driver) == {"cond": [0, 1, 4, 5], "uncond": [0, 1, 4, 5]}
    assert (driver.reasons()[4], driver.reasons()[5]) == ("geometry-changed", "rate-unknown")


def test_image_to_video_compares_and_moves_the_latent_without_its_condition():
    """Two output channels of six: the four behind them are noise of another size in every step."""
    driver = easy([lambda x: 0.5 * x[:, :2] + 1.0])
    plain = easy()

    def with_condition(step):
        g = torch.Generator().manual_seed(step)
        return torch.cat([latent(step), 100 * torch.randn((1, 4, 3, 4), generator=g)], dim=1)

    for driven, value in ((driver, with_condition), (plain, latent)):
        _, outputs = play(driven, value=value)
        driven.outputs = outputs
    assert computed_of(driver) == computed_of(plain) == {"cond": [0, 1, 7], "uncond": [0, 1, 7]}
    assert [e.metric for e in driver.cache.events] == [e.metric for e in plain.cache.events]
    assert all(torch.equal(a, b) for a, b in zip(driver.outputs["cond"], plain.outputs["cond"], strict=True))


def test_an_ambiguous_call_is_computed_and_drops_what_was_kept():
    driver = easy(last=0)
    counters = driver.begin(driver.view(9))
    for step in range(9):
        for branch in BOTH:
            source = "ambiguous" if (step, branch) == (4, "cond") else "context"
            driver.call(step, latent(step), branch=branch, total=9, source=source)
            if source == "ambiguous":
                assert not list(driver.cache.held_tensors())
    # the second branch leads step 4, the first one again from step 5, with nothing kept
    assert driver.computed("cond") == [0, 1, 4, 5, 6]
    assert driver.computed("uncond") == [0, 1, 4, 5, 6]
    assert driver.reasons("cond")[4] == "ambiguous-identity"
    assert sum(counters.fallbacks.values()) == 1


def test_an_unknown_number_of_steps_computes_all_and_says_so():
    driver = easy()
    counters = driver.begin(driver.view(0))
    for step in range(5):
        driver.call(step, latent(step))
    assert driver.computed() == [0, 1, 2, 3, 4]
    assert driver.reasons()[4] == "unknown-steps"
    assert sum(counters.fallbacks.values()) == 3
    free = easy(last=0)
    free.begin(free.view(0))
    for step in range(5):
        free.call(step, latent(step))
    assert free.computed() == [0, 1]


@pytest.mark.parametrize(("total", "first", "last"), [(1, 10, 1), (11, 10, 1), (3, 0, 1), (2, 0, 0)])
def test_too_few_steps_to_skip_any_is_said(total, first, last):
    driver = easy(first=first, last=last)
    counters, _ = play(driver, total)
    assert counters.counts["skipped"] == 0
    (sentence,) = counters.fallbacks
    assert f"all {total} steps are computed" in sentence
    assert counters.counts["host_syncs"] == 0


def test_a_second_run_starts_clean_also_after_an_abort():
    fail = False

    def block(x):
        if fail:
            raise ArithmeticError("injected")
        return 0.5 * x + 1.0

    driver = easy([block])
    _, first = play(driver)
    driver.cache.end()
    play(driver, 5, value=lambda step: torch.full((2, 2, 7), 3.0 + step))
    fail = True
    with pytest.raises(ArithmeticError):
        driver.call(5, latent(5), total=99)
    driver.cache.end()
    assert not list(driver.cache.held_tensors())
    fail = False
    _, again = play(driver)
    assert all(torch.equal(a, b) for a, b in zip(first["cond"], again["cond"], strict=True))


def test_a_leader_keeps_four_latents_and_a_follower_one():
    driver = easy()
    driver.begin(driver.view(8))
    found = {}
    for step in range(4):
        for branch in BOTH:
            driver.call(step, latent(step), branch=branch, total=8)
            found[step, branch] = sum(t.numel() for t in driver.cache.held_tensors() if t.dim() > 1) / LATENT
    # the leader's offset, output and latent; the follower's offset; after a skip also the newest latent
    assert found[0, "cond"] == 3
    assert found[1, "uncond"] == 4
    assert found[3, "cond"] == found[3, "uncond"] == 5


@pytest.mark.parametrize("release", ["end", "close"])
def test_everything_is_released(release):
    driver = easy()
    driver.begin(driver.view(8))
    for step in range(4):
        for branch in BOTH:
            driver.call(step, latent(step), branch=branch, total=8)
    seen = [weakref.ref(tensor) for tensor in driver.cache.held_tensors()]
    assert len(seen) == 5 + 2
    getattr(driver.cache, release)()
    gc.collect()
    assert [ref() for ref in seen] == [None] * len(seen)


def test_one_wait_per_step_that_the_rule_decides(monkeypatch):
    from wf_plugin_cache_easycache import measuring

    asked = []
    monkeypatch.setattr(measuring, "worst", lambda sums: asked.append(sums.shape) or 0.0)
    driver = easy()
    counters, _ = play(driver, value=lambda step: torch.cat([latent(step)] * 3))
    assert asked == [(3,)] * 5
    assert counters.counts["host_syncs"] == 5
