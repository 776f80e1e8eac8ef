"""The timesteps of pipelines that give their scheduler sigmas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler

from wf_lib_family.schedule import sigma_timesteps


def timesteps(**arguments: Any) -> list[float]:
    pipe = SimpleNamespace(scheduler=FlowMatchEulerDiscreteScheduler())
    before = dict(vars(pipe.scheduler))
    found, steps, problems = sigma_timesteps(pipe, arguments)
    assert (problems, steps) == ([], len(found))
    assert {key: value is before.get(key) for key, value in vars(pipe.scheduler).items()} == dict.fromkeys(
        before, True
    ), "a copy is asked"
    values: list[float] = found.tolist()
    return values


def test_sigmas_are_evenly_spaced_or_the_callers_own() -> None:
    assert timesteps(num_inference_steps=4) == [1000.0, 750.0, 500.0, 250.0]
    assert timesteps(num_inference_steps=4, sigmas=[0.5, 0.25]) == [500.0, 250.0]


@pytest.mark.parametrize("steps", [0, True, 2.0, None])
def test_a_number_of_steps_that_is_none_is_told(steps: Any) -> None:
    pipe = SimpleNamespace(scheduler=FlowMatchEulerDiscreteScheduler())
    found, _, problems = sigma_timesteps(pipe, {"num_inference_steps": steps})
    assert found is None
    assert problems == [f"num_inference_steps must be a whole number of at least 1, got {steps!r}."]


def test_a_pipeline_without_a_scheduler_is_told() -> None:
    pipe = SimpleNamespace(scheduler=None)
    assert sigma_timesteps(pipe, {"num_inference_steps": 2})[2] == [
        "the pipeline has no scheduler; load one."
    ]
