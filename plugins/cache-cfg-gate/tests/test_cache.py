"""The gate by hand: what runs, what is kept, what is released."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch

from wf_core.testing import CacheDriver
from wf_plugin_cache_cfg_gate.cache import CfgGate

BOTH = ("cond", "uncond")
SHAPE = (1, 2, 3, 4)
LATENT = 24


def output(step, branch, shape=SHAPE):
    """What the model gives: another tensor for each step and branch."""
    g = torch.Generator().manual_seed(100 * step + (branch == "uncond"))
    return torch.randn(shape, generator=g)


def gate(fraction=0.5):
    return CacheDriver(CfgGate(fraction), [lambda x: x])


def call(driver, step, branch, total, shape=SHAPE, **more):
    return driver.call(step, output(step, branch, shape), branch=branch, total=total, **more)


def play(driver, total=8, branches=BOTH, experts=(), **more):
    counters = driver.begin(driver.view(total, experts=experts))
    outputs = {branch: [] for branch in branches}
    for step in range(total):
        expert = experts[step] if experts else "transformer"
        for branch in branches:
            outputs[branch].append(call(driver, step, branch, total, expert=expert, **more))
    return counters, outputs


def delta(step):
    return output(step, "cond") - output(step, "uncond")


def test_behind_the_gate_the_last_full_difference_stands_in():
    driver = gate()
    counters, outputs = play(driver)
    assert driver.computed("cond") == list(range(8))
    assert driver.computed("uncond") == [0, 1, 2, 3]
    for step in range(8):
        assert torch.equal(outputs["cond"][step], output(step, "cond"))
        wanted = output(step, "uncond") if step < 4 else output(step, "cond") - delta(3)
        assert torch.equal(outputs["uncond"][step], wanted)
    assert counters.counts == {"computed": 12, "skipped": 4, "full_steps": 4, "reused_deltas": 4}
    assert driver.reasons("uncond") == {
        **dict.fromkeys(range(4), "before-gate"),
        **dict.fromkeys(range(4, 8), "gated"),
    }
    assert not counters.fallbacks
    assert driver.cache.evidence() == {"first_gated_step": 4}


@pytest.mark.parametrize("scale", [1.5, 7.0])
def test_any_scale_outside_gives_the_conditional_output_plus_the_scaled_difference(scale):
    _, outputs = play(gate())
    c, u = outputs["cond"][6], outputs["uncond"][6]
    assert torch.allclose(u + scale * (c - u), output(6, "cond") + (scale - 1) * delta(3), atol=1e-5)


def test_a_share_of_one_never_gates_and_says_so():
    driver = gate(1.0)
    counters, outputs = play(driver)
    assert driver.computed("uncond") == list(range(8))
    assert counters.counts["reused_deltas"] == counters.counts["skipped"] == 0
    assert all(torch.equal(outputs["uncond"][i], output(i, "uncond")) for i in range(8))
    (sentence,) = counters.fallbacks
    assert "all 8 steps" in sentence


@pytest.mark.parametrize(("fraction", "total"), [(0.0, 8), (0.1, 8), (0.5, 1)])
def test_a_run_without_a_full_step_is_refused(fraction, total):
    driver = gate(fraction)
    (reason,) = driver.cache.check(driver.view(total))
    assert f"cfg_gate_step={fraction:g} of {total} steps" in reason


def test_identical_input_gives_the_computed_output():
    driver = CacheDriver(CfgGate(0.5), [lambda x: x])
    driver.begin(driver.view(4))
    for step in range(4):
        driver.call(step, output(0, "cond"), branch="cond", total=4)
        u = driver.call(step, output(0, "uncond"), branch="uncond", total=4)
        assert torch.allclose(u, output(0, "uncond"), atol=1e-6)


def test_each_expert_has_its_own_difference_and_a_full_first_step():
    driver = gate(0.25)
    experts = ("high",) * 4 + ("low",) * 4
    driver.begin(driver.view(tuple(float(t) for t in range(8)), experts=experts))
    seen = []
    for step, expert in enumerate(experts):
        for branch in BOTH:
            out = call(driver, step, branch, 8, expert=expert)
            if (step, branch) == (3, "uncond"):
                seen = [weakref.ref(t) for t in driver.cache.held_tensors()]
            if (step, branch) == (4, "cond"):
                gc.collect()
                assert [ref() for ref in seen] == [None]
            if (step, branch) == (6, "uncond"):
                assert torch.equal(out, output(6, "cond") - delta(4))
    assert driver.computed("uncond") == [0, 1, 4]
    assert driver.reasons("uncond")[4] == "expert-start"


def test_an_expert_that_nobody_announced_starts_with_a_full_step():
    driver = gate(0.25)
    driver.begin(driver.view(8))
    for step in range(8):
        for branch in BOTH:
            call(driver, step, branch, 8, expert="high" if step < 4 else "low")
    assert driver.computed("uncond") == [0, 1, 4]
    assert driver.reasons("uncond")[4] == "nothing-cached"


def test_a_guidance_interval_that_begins_behind_the_gate():
    driver = gate()
    counters = driver.begin(driver.view(8))
    for step in range(8):
        for branch in BOTH if step >= 5 else ("cond",):
            out = call(driver, step, branch, 8)
    assert driver.computed("uncond") == [5]
    assert torch.equal(out, output(7, "cond") - delta(5))
    assert counters.counts["full_steps"] == 1


def test_a_guidance_interval_that_misses_the_last_full_step():
    """What is kept is older than planned, so that one more full step refreshes it."""
    driver = gate()
    driver.begin(driver.view(8))
    for step in range(8):
        for branch in BOTH if step not in (2, 3) else ("cond",):
            out = call(driver, step, branch, 8)
    assert driver.computed("uncond") == [0, 1, 4]
    assert driver.reasons("uncond")[4] == "missed-step"
    assert torch.equal(out, output(7, "cond") - delta(4))


def test_gated_steps_that_are_left_out_change_nothing():
    driver = gate()
    driver.begin(driver.view(8))
    for step in (0, 1, 2, 3, 5, 7):
        for branch in BOTH:
            out = call(driver, step, branch, 8)
    assert driver.computed("uncond") == [0, 1, 2, 3]
    assert torch.equal(out, output(7, "cond") - delta(3))


def test_the_unconditional_call_first_is_computed_and_counted():
    driver = gate()
    counters, outputs = play(driver, branches=BOTH[::-1])
    assert driver.computed("uncond") == list(range(8))
    assert all(torch.equal(outputs["uncond"][i], output(i, "uncond")) for i in range(8))
    assert list(counters.fallbacks.values()) == [4]
    assert "without the conditional one before it" in next(iter(counters.fallbacks))
    assert counters.counts["reused_deltas"] == 0


def test_one_step_in_the_other_order_is_computed_and_the_next_is_gated_again():
    driver = gate()
    counters = driver.begin(driver.view(8))
    for step in range(8):
        for branch in BOTH if step != 5 else BOTH[::-1]:
            out = call(driver, step, branch, 8)
    assert driver.computed("uncond") == [0, 1, 2, 3, 5]
    assert driver.reasons("uncond")[5] == "no-conditional"
    assert torch.equal(out, output(7, "cond") - delta(3))
    assert sum(counters.fallbacks.values()) == 1


def test_poison_in_the_unconditional_branch_does_not_reach_the_other():
    driver = gate()
    driver.begin(driver.view(8))
    for step in range(8):
        assert call(driver, step, "cond", 8).isfinite().all()
        driver.call(step, torch.full(SHAPE, math.nan), branch="uncond", total=8)


def test_a_bad_number_before_the_last_full_step_is_not_kept():
    driver = gate()
    driver.begin(driver.view(8))
    for step in range(8):
        driver.call(step, output(step, "cond") * (math.nan if step == 1 else 1), branch="cond", total=8)
        out = call(driver, step, "uncond", 8)
        assert out.isfinite().all()


def test_what_is_kept_does_not_alias_what_the_model_gave():
    driver = CacheDriver(CfgGate(0.5), [lambda x: x])
    driver.begin(driver.view(4))
    for step in range(4):
        c, u = output(step, "cond"), output(step, "uncond")
        driver.call(step, c, branch="cond", total=4)
        c.fill_(1e6)  # as a captured graph does, which gives each call's output in the same memory
        found = driver.call(step, u, branch="uncond", total=4)
        if step >= 2:
            assert torch.equal(found, output(step, "cond") - delta(1))
        found.fill_(-1e6)
        u.fill_(-1e6)


def test_a_batch_is_gated_sample_by_sample_alike():
    driver = gate()
    play(driver, shape=(3, *SHAPE[1:]))
    assert driver.computed("uncond") == [0, 1, 2, 3]


def test_bf16_stays_bf16():
    driver = CacheDriver(CfgGate(0.5), [lambda x: x.bfloat16()])
    _, outputs = play(driver)
    assert {out.dtype for out in outputs["uncond"]} == {torch.bfloat16}
    exact = output(6, "cond") - delta(3)
    assert (outputs["uncond"][6] - exact).abs().max() <= 0.02 * exact.abs().max()


@pytest.mark.parametrize("changed", [{"shape": (1, 2, 5, 4)}, {"dtype": torch.float64}])
def test_another_size_or_dtype_behind_the_gate_takes_one_full_step(changed):
    driver = gate()
    driver.begin(driver.view(8))
    for step in range(8):
        for branch in BOTH:
            changes = changed if step >= 5 else {}
            x = output(step, branch, changes.get("shape", SHAPE)).to(changes.get("dtype", torch.float32))
            out = driver.call(step, x, branch=branch, total=8)
            assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert driver.computed("uncond") == [0, 1, 2, 3, 5]
    assert driver.reasons("uncond")[5] == "geometry-changed"


@pytest.mark.parametrize("branch", BOTH)
def test_an_ambiguous_call_is_computed_and_drops_what_was_kept(branch):
    driver = gate()
    counters = driver.begin(driver.view(8))
    for step in range(8):
        for each in BOTH:
            source = "ambiguous" if (step, each) == (5, branch) else "context"
            call(driver, step, each, 8, source=source)
            if source == "ambiguous":
                assert not list(driver.cache.held_tensors())
    full = [0, 1, 2, 3, 5, 6]
    assert driver.computed("uncond") == full
    assert driver.reasons(branch)[5] == "ambiguous-identity"
    assert counters.counts["reused_deltas"] == 8 - len(full)


def test_an_unknown_number_of_steps_is_never_gated_and_says_so():
    driver = gate()
    counters = driver.begin(driver.view(0))
    for step in range(4):
        for branch in BOTH:
            call(driver, step, branch, 0)
    assert driver.computed("uncond") == [0, 1, 2, 3]
    assert not list(driver.cache.held_tensors())
    assert list(counters.fallbacks.values()) == [4]


def test_branches_of_another_name_are_left_alone():
    driver = gate()
    _, outputs = play(driver, branches=("cond_uncond", "perturbed"))
    assert all(torch.equal(outputs["perturbed"][i], output(i, "perturbed")) for i in range(8))
    assert not list(driver.cache.held_tensors())


def test_a_single_branch_run_keeps_one_output_at_most():
    driver = gate()
    driver.begin(driver.view(8))
    for step in range(8):
        call(driver, step, "cond", 8)
        assert sum(t.numel() for t in driver.cache.held_tensors()) == LATENT


def test_one_latent_is_kept_and_the_conditional_output_only_within_a_step():
    driver = gate()
    driver.begin(driver.view(8))
    found = []
    for step in range(8):
        for branch in BOTH:
            call(driver, step, branch, 8)
            found.append(sum(t.numel() for t in driver.cache.held_tensors()) / LATENT)
    assert found == [1, 1, *[2, 1] * 7]


def test_while_the_conditional_branch_is_computed_the_last_one_is_not_held():
    held = []
    driver = CacheDriver(CfgGate(0.5), [lambda x: held.append(len([*driver.cache.held_tensors()])) or x])
    driver.begin(driver.view(4))
    for step in range(4):
        call(driver, step, "cond", 4)  # the other branch is not called: a guidance interval
    assert held == [0, 0, 0, 0]


def test_a_second_run_starts_clean_also_after_an_abort():
    fail = False

    def model(x):
        if fail:
            raise ArithmeticError("injected")
        return x

    driver = CacheDriver(CfgGate(0.5), [model])
    _, first = play(driver)
    driver.cache.end()
    play(driver, 5, shape=(2, 2, 7))
    fail = True
    with pytest.raises(ArithmeticError):
        call(driver, 5, "cond", 8)
    driver.cache.end()
    assert not list(driver.cache.held_tensors())
    fail = False
    _, again = play(driver)
    assert all(torch.equal(a, b) for a, b in zip(first["uncond"], again["uncond"], strict=True))


@pytest.mark.parametrize("release", ["end", "close"])
def test_everything_is_released(release):
    driver = gate()
    driver.begin(driver.view(8))
    for step in range(3):
        for branch in BOTH[: 2 if step < 2 else 1]:
            call(driver, step, branch, 8)
    seen = [weakref.ref(tensor) for tensor in driver.cache.held_tensors()]
    assert len(seen) == 2
    getattr(driver.cache, release)()
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
