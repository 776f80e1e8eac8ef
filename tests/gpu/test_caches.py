"""Feature caches on a CUDA device: static schedules wait for nothing, and memory is what the formula says."""

from __future__ import annotations

import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch

from support import models
from wf_core import Host

pytestmark = pytest.mark.gpu

STATIC: dict[str, dict[str, Any]] = {
    "teacache": {"teacache": {"coefficients": [1.0, 0.0], "threshold": 10.0}},
    "custom": {"feature_cache": {"algorithm": "custom", "coefficients": [1.0, 0.0], "threshold": 10.0}},
    "magcache": {"magcache": {"ratios": [1.0] * 12, "threshold": 1.0, "retention_ratio": 0.0}},
    "taylorseer": {"taylorseer": 2},
    "blocktaylorseer": {"feature_cache": "blocktaylorseer"},
    "cfg-gate": {"cfg_gate_step": 0.5},
}
DYNAMIC: dict[str, dict[str, Any]] = {
    "adacache": {"adacache": {"thresholds": [10.0], "rates": [2]}},
    "firstblock": {"feature_cache": {"algorithm": "firstblock", "residual_diff_threshold": 10.0, "first": 1}},
    "dynamicblock": {
        "feature_cache": {"algorithm": "dynamicblock", "residual_diff_threshold": 10.0, "first": 1}
    },
    "easycache": {"feature_cache": {"algorithm": "easycache", "threshold": 10.0, "first": 2}},
}
STEPS = (6, 12)
EVENT_WAIT = torch.cuda.Event.synchronize


@pytest.fixture(scope="module")
def pipe() -> Any:
    return models.to(models.p1(), torch.float32).to("cuda")


def call(pipe: Any, steps: int) -> Any:
    arguments = models.call(num_inference_steps=steps, output_type="latent")
    there = {key: value.cuda() if key.endswith("embeds") else value for key, value in arguments.items()}
    return pipe(**models.fresh(there))


def syncs(pipe: Any, steps: int) -> int:
    """How often a call waits for the device: as torch tells, which knows nothing of the waits for an event."""
    call(pipe, steps)
    torch.cuda.synchronize()
    with (
        warnings.catch_warnings(record=True) as seen,
        patch.object(torch.cuda.Event, "synchronize", autospec=True, side_effect=EVENT_WAIT) as for_event,
    ):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # which warns that it is a prototype
        try:
            call(pipe, steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    told = sum("called a synchronizing" in str(warning.message) for warning in seen)
    return told + for_event.call_count


@pytest.mark.parametrize("name", STATIC)
def test_a_static_schedule_costs_no_wait_per_step(host: Host, pipe: Any, name: str) -> None:
    extra = {}
    for steps in STEPS:
        stock = syncs(pipe, steps)
        with host.session(pipe, STATIC[name]) as session:
            extra[steps] = syncs(session.pipe, steps) - stock
            assert session.report["steps"]["caches"][name]["skipped"] > 0
    print(name, "waits beside the stock pipeline's, by number of steps:", extra)
    few, many = extra.values()
    assert few == many <= 3, "the time signal is read once before the first model call, and nothing later"
    if name not in ("teacache", "custom"):
        assert many == 0


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamic_rule_waits_once_per_call_and_says_so(host: Host, pipe: Any, name: str) -> None:
    steps = STEPS[0]
    stock = syncs(pipe, steps)
    with host.session(pipe, DYNAMIC[name]) as session:
        ours = syncs(session.pipe, steps)
        report = session.report
    told = report["effective"][name]["evidence"]["host_syncs"]
    assert ours - stock == told
    assert 0 < told <= report["steps"]["forwards"]["called"]
