"""Feature caches on a CUDA device: static schedules wait for nothing, and memory is what the formula says."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from support import models
from wf_core import Host

pytestmark = pytest.mark.gpu

STATIC: dict[str, dict[str, Any]] = {
    "teacache": {"teacache": {"coefficients": [1.0, 0.0], "threshold": 10.0}},
    "custom": {"feature_cache": {"algorithm": "custom", "coefficients": [1.0, 0.0], "threshold": 10.0}},
    "magcache": {"magcache": {"ratios": [1.0] * 6, "threshold": 1.0, "retention_ratio": 0.0}},
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
STEPS = 6


@pytest.fixture(scope="module")
def pipe() -> Any:
    return models.to(models.p1(), torch.float32).to("cuda")


def call(pipe: Any) -> Any:
    arguments = models.call(num_inference_steps=STEPS, output_type="latent")
    there = {key: value.cuda() if key.endswith("embeds") else value for key, value in arguments.items()}
    return pipe(**models.fresh(there))


def syncs(pipe: Any) -> int:
    """How often a call waits for the device, as torch tells."""
    call(pipe)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call(pipe)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in seen)


@pytest.mark.parametrize("name", STATIC)
def test_a_static_schedule_waits_for_the_device_no_more_than_the_stock_pipeline(
    host: Host, pipe: Any, name: str
) -> None:
    stock = syncs(pipe)
    with host.session(pipe, STATIC[name]) as session:
        ours = syncs(session.pipe)
        cache = session.report["steps"]["caches"][name]
    assert cache["skipped"] > 0
    # one read of the time signal before the first model call is the most that a schedule may cost
    assert ours <= stock + (1 if name in ("teacache", "custom") else 0)


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamic_rule_waits_once_per_call_and_says_so(host: Host, pipe: Any, name: str) -> None:
    stock = syncs(pipe)
    with host.session(pipe, DYNAMIC[name]) as session:
        ours = syncs(session.pipe)
        report = session.report
    told = report["effective"][name]["evidence"]["host_syncs"]
    assert ours - stock == told
    assert 0 < told <= report["steps"]["forwards"]["called"]
