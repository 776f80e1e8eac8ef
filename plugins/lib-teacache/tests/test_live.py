"""A driver that gives no schedule: the signal is evaluated at each call."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from teacache_fakes import Driver, TimeEmbedding, driver, ramp_timesteps, settings
from teacache_vectors import SCHEDULES, coefficients, timesteps_for, vector

from wf_lib_teacache.cache import TeaCache

EMBEDDING = TimeEmbedding()


def play(player, timesteps, total, **changes):
    counters = player.begin(player.view(total))
    for index, timestep in enumerate(timesteps):
        player.at(index, timestep, total=total, **changes)
    return counters


@pytest.mark.parametrize("name", SCHEDULES)
def test_live_decisions_are_those_of_the_schedule(name):
    given, expected = vector(name)["inputs"], vector(name)["expected"]
    signal = given["preset"].rpartition(".")[2]
    rule = settings(
        coefficients(given["preset"]),
        given["thresh"],
        signal=signal,
        first=given["retain_first"],
        last=given["retain_last"],
    )
    player = Driver(TeaCache(rule), EMBEDDING)
    timesteps = timesteps_for(given["d"], EMBEDDING.signal(signal))
    play(player, timesteps, len(timesteps))
    assert player.computed() == expected["compute_steps"]
    assert player.cache.evidence()["decisions"] == "live"


def test_two_branches_decide_alone():
    player = driver(threshold=0.25)
    player.begin(player.view(6))
    for branch, step in (("cond", 0.1), ("uncond", 0.2)):
        for index, timestep in enumerate(ramp_timesteps([0] + [step] * 5)):
            player.at(index, timestep, branch=branch, total=6)
    assert (player.computed("cond"), player.computed("uncond")) == ([0, 3, 5], [0, 2, 4, 5])


def test_an_experts_first_call_is_computed():
    player = driver(threshold=10.0)
    player.begin(player.view(6))
    for index, timestep in enumerate(ramp_timesteps([0] + [0.1] * 5)):
        player.at(index, timestep, expert="high" if index < 3 else "low", total=6)
    assert player.computed() == [0, 3, 5]
    assert player.reasons()[3] == "nothing-cached"


def test_leaving_the_domain_is_computed_and_counted():
    given = vector("tea.domain.failure")["inputs"]
    rule = settings(coefficients(given["preset"]), given["thresh"], signal="e0", first=5, last=0)
    player = Driver(TeaCache(rule), EMBEDDING)
    counters = play(player, timesteps_for(given["d"], EMBEDDING.signal("e0")), 10)
    reasons = player.reasons()
    assert [index for index, reason in reasons.items() if reason == "domain"] == [5, 6]
    assert reasons[7] == "below-threshold", "p(0.03) = 0.092 on a sum that starts anew"
    assert [(sentence, count) for sentence, count in counters.fallbacks.items()] == [
        ("the polynomial left its domain; the step was computed", 2)
    ]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_timestep_that_is_not_finite_is_computed(bad):
    player = driver(threshold=10.0)
    timesteps = list(ramp_timesteps([0] + [0.1] * 7))
    timesteps[3] = bad
    counters = play(player, timesteps, 8)
    assert player.computed() == [0, 3, 4, 7]
    assert sum(counters.fallbacks.values()) == 2


def test_unknown_number_of_steps_computes_all_where_the_last_must_be():
    player = driver(threshold=10.0)
    counters = play(player, ramp_timesteps([0] + [0.1] * 5), 0)
    assert player.computed() == [0, 1, 2, 3, 4, 5]
    assert list(player.reasons().values()) == ["first-steps"] + ["unknown-steps"] * 5
    assert sum(counters.fallbacks.values()) == 5


def test_unknown_number_of_steps_is_no_matter_without_last_steps():
    player = driver(threshold=10.0, last=0)
    play(player, ramp_timesteps([0] + [0.1] * 5), 0)
    assert player.computed() == [0]


def test_max_skip_is_counted():
    player = driver(threshold=10.0, max_skip=2)
    counters = play(player, ramp_timesteps([0] + [0.01] * 8), 9)
    assert player.computed() == [0, 3, 6, 8]
    assert counters.counts["max_skip_cuts"] == 2


def test_per_token_timesteps_are_read_at_their_maximum():
    player = driver(threshold=0.25)
    timesteps = [torch.tensor([[0.0, t, t]]) for t in ramp_timesteps([0] + [0.1] * 5)]
    play(player, timesteps, 6)
    assert player.computed() == [0, 3, 5]


def test_an_ambiguous_call_leaves_nothing_to_compare_with_or_reuse():
    player = driver(threshold=0.15)
    player.begin(player.view(7))
    for index, timestep in enumerate(ramp_timesteps([0] + [0.1] * 6)):
        player.at(index, timestep, total=7, source="ambiguous" if index == 2 else "ordinal")
    assert player.computed() == [0, 2, 3, 5, 6]
    reasons = player.reasons()
    assert (reasons[2], reasons[3]) == ("ambiguous-identity", "nothing-cached")


def test_another_shape_starts_the_sum_anew():
    player = driver(threshold=0.25)
    player.begin(player.view(9))
    for index, timestep in enumerate(ramp_timesteps([0] + [0.1] * 8)):
        player.at(index, timestep, torch.ones(1, 2 if index < 2 else 3, 4), total=9)
    assert player.computed() == [0, 2, 5, 8]


def test_end_releases_residual_and_signal():
    player = driver(threshold=10.0)
    play(player, ramp_timesteps([0] + [0.1] * 5), 6)
    seen = [weakref.ref(tensor) for tensor in player.cache.held_tensors()]
    assert len(seen) == 2
    player.cache.end()
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
