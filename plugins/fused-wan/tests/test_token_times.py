"""Timesteps that tokens share: found, checked behind the device, and refused when they are not what they were."""

from __future__ import annotations

import pytest
import torch
from fused_by_hand import ready

from wf_core.api import Site, TokenRows
from wf_plugin_fused_wan.modulation import FusedModulation
from wf_plugin_fused_wan.token_times import FAILED, TokenTimes

TWO = torch.tensor([[0.0, 0.0, 7.0, 7.0], [0.0, 7.0, 0.0, 7.0]])
ONE = torch.full((2, 4), 7.0)
THREE = torch.tensor([[0.0, 3.0, 7.0, 7.0], [0.0, 7.0, 0.0, 7.0]])
OF_TOKENS, OF_FRAMES = (
    Site("time_embedding", "transformer"),
    Site("time_embedding", "transformer", role="frame"),
)


def embed(timestep):
    """As the model: ``[B, L]`` -> ``[B, L, D]`` and ``[B, L, 6, D]``."""
    temb = timestep.unsqueeze(-1) * torch.arange(1.0, 5.0)
    return temb, temb.unsqueeze(2) * torch.arange(1.0, 7.0).view(6, 1)


@pytest.mark.parametrize(("timestep", "distinct"), [(TWO, 2), (ONE, 1), (ONE[:, :1], 1), (TWO[:, [0, 2]], 2)])
def test_each_distinct_timestep_is_embedded_once(timestep, distinct):
    ours = ready(FusedModulation())
    seen = []

    def inner(values):
        seen.append(values)
        return embed(values)

    rows = ours.time_embedding(inner, OF_TOKENS, timestep)
    assert seen[0].shape == (2, distinct)
    for found, expected in zip(rows, embed(timestep), strict=True):
        assert isinstance(found, TokenRows)
        assert torch.equal(found.dense(), expected)
    assert ours.counters.seen == {"deduplicated_calls": 1}


def test_more_than_two_are_left_to_the_model_and_counted():
    ours = ready(FusedModulation())
    for _ in range(2):
        temb, _ = ours.time_embedding(embed, OF_TOKENS, THREE)
        assert torch.equal(temb, embed(THREE)[0])
    why = "the tokens of a row have more than two timesteps"
    assert ours.counters.reasons == {("time_embedding", why): 2}
    ours.end()


@pytest.mark.parametrize("timestep", [THREE, ONE, TWO[:, :1]])
def test_each_frame_has_its_row_whatever_its_timestep_is_and_nothing_is_looked_at(timestep):
    ours, later = ready(FusedModulation("cosmos")), ready(FusedModulation("cosmos"))
    rows = ours.time_embedding(embed, OF_FRAMES, timestep)
    for found, expected in zip(rows, embed(timestep), strict=True):
        assert torch.equal(found.values, expected) and torch.equal(found.dense(), expected)
    assert rows[0].index is rows[1].index
    later.time_embedding(lambda t: embed(torch.zeros(t.shape)), OF_FRAMES, timestep.to("meta"))
    for technique in (ours, later):
        assert technique.counters.seen == {"deduplicated_calls": 1}
        technique.end()


@pytest.mark.parametrize("site", [OF_TOKENS, OF_FRAMES])
def test_one_timestep_per_sample_is_not_this_features(site):
    ours = ready(FusedModulation())
    assert ours.time_embedding(lambda t: ("temb", t), site, ONE[:, 0])[0] == "temb"
    assert not ours.counters.seen and not ours.counters.reasons


@pytest.mark.parametrize(("first", "later"), [(TWO, THREE), (ONE, TWO)])
def test_a_later_step_that_differs_is_an_error_at_the_next_call_or_at_the_end(first, later):
    for finish in (lambda times: times.reduce(first), TokenTimes.end):
        times = TokenTimes()
        times.reduce(first)
        times.reduce(later)
        with pytest.raises(RuntimeError, match="fused-modulation") as error:
            finish(times)
        assert str(error.value) == FAILED
        times.end()  # nothing is left to complain of


def test_a_new_run_looks_again():
    times = TokenTimes()
    times.reduce(ONE)
    times.end()
    values, index = times.reduce(TWO)
    assert values.shape == (2, 2)
    assert index.tolist() == [[0, 0, 1, 1], [0, 1, 0, 1]]
