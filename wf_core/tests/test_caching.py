"""The cache runtime: windows, differences, distances, schedules, and what stands at the seam."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import pytest
import torch

from wf_core.api import (
    CacheState,
    Decision,
    Differences,
    FeatureCache,
    Reading,
    ResidualState,
    RunView,
    ScheduledCache,
    StaticSchedule,
    Step,
    Window,
    mean_abs,
    relative_l1,
    retained,
    scheduled,
    worst,
)
from wf_core.testing import CacheDriver


def test_a_window_says_why() -> None:
    window = Window(2, 1)
    assert [window.reason(i, 6) for i in range(6)] == ["first-steps"] * 2 + [""] * 3 + ["last-steps"]
    assert [window.reason(i, 0) for i in (0, 2)] == ["first-steps", "unknown-steps"]
    assert Window(1, 0).reason(1, 0) == "", "without last steps their place does not matter"


def test_a_distance_is_per_sample_and_the_worst_decides() -> None:
    older = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
    current = torch.tensor([[1.1, 2.0, 3.3, 4.4], [1.5, 1.5, 1.5, 1.5]])
    found = relative_l1(current, older)
    assert found.tolist() == pytest.approx([0.08, 0.5], abs=1e-6)
    assert worst(found) == pytest.approx(0.5)
    assert math.isnan(worst(relative_l1(torch.full((2, 4), math.nan), older)))
    assert relative_l1(torch.ones(1, 4), torch.zeros(1, 4)).item() == pytest.approx(1e6)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_differences_continue_what_was_sampled(order: int) -> None:
    line = Differences(order)
    for step in (0, 4):
        line.add(step, torch.tensor([2.0 + 0.5 * step]))
    expected = 4.0 if order == 0 else 2.0 + 0.5 * 6
    assert line.continued(6).item() == pytest.approx(expected)
    assert len(line.held()) == min(order, 1) + 1


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_differences_are_those_of_the_published_recursion(order: int) -> None:
    """Uneven gaps; in float64, against the recursion written out on the samples seen so far."""
    values = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(order))
    line, at = Differences(order), (0, 3, 4, 9, 11, 12)
    factors: list[torch.Tensor] = []
    for index, (step, sample) in enumerate(zip(at, values, strict=True)):
        line.add(step, sample)
        newer = [sample]
        for older in factors[:order]:
            newer.append((newer[-1] - older) / (step - at[index - 1]))
        factors = newer
        wanted = sum(factor * 2.5**k / math.factorial(k) for k, factor in enumerate(factors))
        torch.testing.assert_close(line.continued(step + 2.5), wanted)  # type: ignore[arg-type]
        kept = [values[k].data_ptr() for k in range(index, max(-1, index - order - 1), -1)]
        assert [tensor.data_ptr() for tensor in line.held()] == kept, "the samples themselves, no copies"


def test_numbers_on_their_way_to_the_host_arrive() -> None:
    numbers = torch.tensor([[0.5, math.nan], [1.0, 2.0]], requires_grad=True)
    found = Reading(numbers).numbers()
    assert (
        torch.equal(found.nan_to_num(-1), torch.tensor([[0.5, -1.0], [1.0, 2.0]])) and not found.requires_grad
    )


def test_a_mean_of_half_precision_is_summed_in_fp32() -> None:
    big = torch.full((2, 4096), 100.0, dtype=torch.float16)
    assert mean_abs(-big).tolist() == [100.0, 100.0], "409,600 is above what float16 can hold"
    assert math.isnan(mean_abs(torch.tensor([[[1.0, math.nan]]])).item())


@pytest.mark.parametrize("shape", [(1, 8190, 1536), (2, 6_000_000)])
def test_a_distance_keeps_its_digits_over_millions_of_elements(shape: tuple[int, ...]) -> None:
    """One sum in fp32 would lose them: 1e7 ones are no more than 2^24."""
    older = torch.rand(shape, generator=torch.Generator().manual_seed(0)).add_(0.5)
    assert mean_abs(older).tolist() == pytest.approx(older.double().flatten(1).mean(1).tolist(), rel=1e-5)
    assert relative_l1(older * 1.01, older).tolist() == pytest.approx([0.01] * shape[0], rel=1e-3)


def test_what_is_kept_is_not_a_part_of_something_larger() -> None:
    whole = torch.zeros(4, 3, requires_grad=True)
    assert retained(whole).data_ptr() == whole.data_ptr() and not retained(whole).requires_grad
    part = retained(whole[:2])
    assert part.untyped_storage().nbytes() == part.nbytes and part.data_ptr() != whole.data_ptr()


def test_differences_start_anew_where_samples_do_not_fit() -> None:
    line = Differences(1)
    line.add(0, torch.zeros(2))
    line.add(1, torch.ones(3))
    assert len(line.held()) == 1
    line.add(1, torch.ones(3))
    assert len(line.held()) == 1, "the same step twice has no slope"
    line.clear()
    assert (line.at, line.held()) == (None, ())


class Every(ScheduledCache):
    """Computes every second step."""

    def schedule(self, run: RunView, branch: str) -> StaticSchedule | None:
        if not run.num_inference_steps:
            return None

        def rule(forced: Collection[int]) -> tuple[Decision, ...]:
            return scheduled(run, Window(1, 0), lambda index: "" if index % 2 else "even", forced)

        return StaticSchedule.of(run, rule)


def test_a_schedule_is_followed_and_counted() -> None:
    player = CacheDriver(Every())
    run = player.view([9, 8, 7, 6, 5])
    counters = player.begin(run)
    assert player.play(run, ("cond", "uncond")) == {"cond": [0, 2, 4], "uncond": [0, 2, 4]}
    assert counters.counts == {"computed": 6, "skipped": 4}
    assert player.reasons() == {0: "first-steps", 1: "between", 2: "even", 3: "between", 4: "even"}


def test_a_call_off_its_schedule_is_computed_and_said() -> None:
    player = CacheDriver(Every())
    run = player.view([9.0, 8.0, 7.0])
    counters = player.begin(run)
    for index, timestep in enumerate((9.0, 5.0, 7.0)):
        player.call(index, timestep=timestep)
    assert player.reasons()[1] == "schedule-mismatch"
    assert sum(counters.fallbacks.values()) == 1


def test_a_scheduled_step_that_a_branch_misses_is_made_up_for() -> None:
    player = CacheDriver(Every())
    player.begin(player.view(6))
    for index in (0, 1, 3, 4, 5):
        player.call(index)
    assert player.reasons() == {0: "first-steps", 1: "between", 3: "missed-step", 4: "even", 5: "between"}


def test_an_unknown_number_of_steps_is_computed_and_keeps_nothing() -> None:
    player = CacheDriver(Every())
    counters = player.begin(player.view(0))
    for index in range(3):
        player.call(index)
    assert set(player.reasons().values()) == {"unknown-steps"}
    assert sum(counters.fallbacks.values()) == 3
    assert list(player.cache.held_tensors()) == []


def test_a_schedule_that_skips_nothing_says_so_once() -> None:
    player = CacheDriver(Every())
    counters = player.begin(player.view(1))
    assert list(counters.fallbacks) == ["all 1 steps are computed: 1 first-steps"]


def test_the_first_experts_tensors_are_dropped_at_the_switch() -> None:
    player = CacheDriver(Every())
    run = player.view([9, 8, 7, 6], experts=("high", "high", "low", "low"))
    player.begin(run)
    held = []
    for index, expert in enumerate(run.experts):
        player.call(index, timestep=run.timesteps[index], expert=expert)
        held.append(len(list(player.cache.held_tensors())))
    assert held == [1, 1, 1, 1]
    assert player.computed() == [0, 2]


def test_an_ambiguous_call_is_computed_and_drops_what_was_kept() -> None:
    player = CacheDriver(Every())
    player.begin(player.view(4))
    player.call(0)
    player.call(1, source="ambiguous")
    assert list(player.cache.held_tensors()) == []
    assert player.reasons()[1] == "ambiguous-identity"


class Reckless(FeatureCache):
    """Says skip whatever is known."""

    seam = "denoiser"

    class State(ResidualState):
        def decide(self, step: Step, value: Any) -> Decision:
            return Decision(False, "always")

        def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
            super().commit(step, value["hidden_states"], output)

        def predict(self, step: Step, value: Any) -> torch.Tensor:
            return super().predict(step, value["hidden_states"])

        def ready(self, value: Any) -> str:
            return super().ready(value["hidden_states"])

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        return self.State()


def test_nothing_is_predicted_from_nothing_nor_for_another_geometry() -> None:
    player = CacheDriver(Reckless())
    player.begin(player.view(4))
    player.call(0)
    assert torch.equal(player.call(1), torch.full((1, 2, 4), 2.0))
    player.call(2, torch.ones(1, 3, 4))
    player.call(3, torch.ones(1, 3, 4, dtype=torch.float64))
    assert list(player.reasons().values()) == [
        "nothing-cached",
        "always",
        "geometry-changed",
        "geometry-changed",
    ]


def test_a_cache_outside_a_run_is_an_error() -> None:
    cache = Every()
    with pytest.raises(RuntimeError, match="outside a run"):
        cache.handlers()["stack"](lambda x: x, None, torch.ones(1))
