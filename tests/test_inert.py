"""Warnings that a feature does nothing in a run: they come where, and only where, the run bears them out."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from typing import Any

import pytest
import torch

from support import models
from wf_core import Host, Plan
from wf_core.facts import Facts
from wf_core.facts.run import ONE_TIMESTEP_A_STEP
from wf_core.testing import CacheDriver

LINE = {"coefficients": [1.0, 0.0], "threshold": 10.0}
WINDOWS = [{"first": first, "last": last} for first, last in product((0, 1, 2, 4), (0, 1, 3))]
HALF_WINDOWS = [{"first": 0}, {"first": 3}, {"last": 0}, {"last": 2}]
SIMILAR = {"residual_diff_threshold": 10.0}
DECIDED = [{**SIMILAR, "decide": how} for how in ("previous-call", "each-block")]
BOOKS = [{}, {"codebook": "fast"}, {"codebook": "slow"}, {"codebook": "100-steps"}]
E0 = {**LINE, "signal": "e0"}
WAN, HUNYUAN = {"model.family": "wan"}, {"model.family": "hunyuan"}

EXACTLY: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("firstblock", [{**SIMILAR, **window} for window in WINDOWS], WAN),
    ("dualblock", [{**SIMILAR, **window} for window in WINDOWS], WAN),
    ("dynamicblock", [{**own, **window} for own, window in product(DECIDED, WINDOWS)], WAN),
    ("easycache", [{}, *WINDOWS], WAN),
    ("adacache", [{**book, **window} for book, window in product(BOOKS, WINDOWS)], WAN),
    ("adacache", [{"thresholds": [1.0], "rates": [2], **window} for window in WINDOWS], WAN),
    ("teacache", [{**LINE, **window} for window in (*WINDOWS, {}, {"signal": "e"})], WAN),
    ("teacache", [{**E0}, {**E0, "first": 1}, {**E0, "last": 0}, {**E0, "first": 2, "last": 1}], WAN),
    ("teacache", [{**LINE, **window} for window in (*WINDOWS, {})], HUNYUAN),
    ("custom", [{**LINE, **window} for window in WINDOWS], WAN),
]
"""Features, options and the model's facts with which the manifest says all that the cache finds at the begin of a run.

The rules of the values are set so that everything is skipped that may be.
"""
AT_LEAST: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("taylorseer", [{"interval": n, **window} for n, window in product((1, 2, 4), WINDOWS)], WAN),
    ("teacache", [{**LINE, **window} for window in HALF_WINDOWS], WAN),
    ("blocktaylorseer", [{}, {"pattern": [False, True]}, *WINDOWS], WAN),
    (
        "magcache",
        [
            {"ratios": [1.0] * 6, "retention_ratio": share, "force_last": last}
            for share, last in product((0.0, 0.5, 1.0), (False, True))
        ],
        WAN,
    ),
]
"""Those of which the manifest says a part: what comes from a pattern or a share is said when a run begins."""


def still(timesteps: Any) -> dict[str, torch.Tensor]:
    """Time signals that do not change."""
    rows = torch.ones(len(timesteps), 4)
    return {"e": rows, "e0": rows.repeat(1, 6)}


def outcomes(
    host: Host, feature: str, options: dict[str, Any], model: dict[str, Any]
) -> list[tuple[bool, bool]]:
    """For runs of 1 to 24 steps: whether the manifest warns, and whether the cache says that it computes all steps."""
    offer = next(offer for offer in host.catalog.features() if offer.feature.name == feature)
    declared = {
        option.name: option.convert(options.get(option.name), option.name) for option in offer.feature.options
    }
    plugin = import_module(f"wf_plugin_{offer.plugin.replace('-', '_')}")
    found = []
    for steps in range(1, 25):
        facts = Facts.of({"model.layers": 4, "run.solver_steps": steps, **model}, "test")
        cache = plugin.wf_feature_cache(feature=feature, options=declared, facts=facts)
        player = CacheDriver(cache, modulation=still, facts=facts)
        begun = player.begin(player.view([1000.0 - 10 * step for step in range(steps)]))
        warned = any(each.judge(facts, declared, offer.tables).state == "met" for each in offer.feature.inert)
        found.append((warned, any(f"all {steps} steps are computed" in text for text in begun.fallbacks)))
    return found


@pytest.mark.parametrize(("feature", "grid", "model"), EXACTLY)
def test_the_warning_is_what_the_cache_finds_when_the_run_begins(
    host: Host, feature: str, grid: list[dict[str, Any]], model: dict[str, Any]
) -> None:
    for options in grid:
        found = outcomes(host, feature, options, model)
        assert [warned for warned, _ in found] == [inert for _, inert in found], options
        assert {inert for _, inert in found} == {True, False}, options


@pytest.mark.parametrize(("feature", "grid", "model"), AT_LEAST)
def test_no_warning_is_false(
    host: Host, feature: str, grid: list[dict[str, Any]], model: dict[str, Any]
) -> None:
    for options in grid:
        found = outcomes(host, feature, options, model)
        assert found[0] == (True, True), options
        assert not [steps for steps, (warned, inert) in enumerate(found, 1) if warned and not inert], options


# --- plans --------------------------------------------------------------------------------------------------------


def inert(plan: Plan) -> list[str]:
    return [warning.code for warning in plan.warnings if warning.level == "inert"]


def test_a_plan_warns_of_a_run_that_is_too_short_for_its_cache(host: Host) -> None:
    request = {"feature_cache": {"algorithm": "firstblock", "residual_diff_threshold": 0.1}}
    plan = host.resolve("wan2.1-t2v-1.3b", request, run={"num_inference_steps": 5})
    [warning] = plan.warnings
    assert (warning.code, warning.level) == ("WF-K052", "inert")
    assert {"feature_cache", "firstblock", "first", "last"} <= {*warning.involves}
    assert "warning: WF-K052 all 5 steps are computed, and none is skipped" in plan.explain()
    assert ("run.solver_steps", 5, "derived") in plan.facts_used
    assert inert(host.resolve("wan2.1-t2v-1.3b", request, run={"num_inference_steps": 6})) == []
    assert inert(host.resolve("wan2.1-t2v-1.3b", request)) == [], (
        "a run of which nothing is known is no short run"
    )
    assert host.load_plan(plan.to_json()) == plan


def test_a_scheduler_that_may_make_more_timesteps_than_steps_is_not_judged(host: Host) -> None:
    request = {"feature_cache": {"algorithm": "firstblock", "residual_diff_threshold": 0.1}}
    for scheduler, codes in (
        ("FlowMatchHeunDiscreteScheduler", []),
        ("UniPCMultistepScheduler", ["WF-K052"]),
    ):
        plan = host.resolve(
            "wan2.1-t2v-1.3b", request, run={"num_inference_steps": 4}, facts={"model.scheduler": scheduler}
        )
        assert inert(plan) == codes


def test_the_schedulers_that_are_judged_make_one_timestep_a_step() -> None:
    diffusers = pytest.importorskip("diffusers")
    flow = {"UniPCMultistepScheduler": {"prediction_type": "flow_prediction", "use_flow_sigmas": True}}
    for name in ONE_TIMESTEP_A_STEP:
        scheduler = getattr(diffusers, name)(**flow.get(name, {}))
        for steps in (1, 2, 5, 20):
            scheduler.set_timesteps(steps)
            assert len(scheduler.timesteps) == steps, name


SIZE = {"height": 32, "width": 32, "num_frames": 9}
TOKENS = 12


@pytest.mark.parametrize(
    ("more", "codes", "state"),
    [
        ({"qkv_split_threshold": TOKENS}, ["WF-U020"], "inert"),
        ({"qkv_split_threshold": TOKENS + 1}, [], "effective"),
        ({"qkv_split_threshold": TOKENS, "qkv_strategy": "packed"}, [], "effective"),
    ],
)
def test_projections_of_too_many_rows_are_not_packed_and_the_plan_says_so(
    host: Host, more: dict[str, Any], codes: list[str], state: str
) -> None:
    pipe = models.p1()
    plan = host.resolve(pipe, {"fuse_qkv": True, **more}, run=SIZE)
    assert inert(plan) == codes
    with host.session(pipe, plan) as session, torch.no_grad():
        session.pipe(**models.call(num_inference_steps=1))
    assert session.report["effective"]["fuse-qkv"]["state"] == state
    assert [warning["code"] for warning in session.report["warnings"]] == codes


def test_ranks_and_other_families_may_have_fewer_rows(host: Host) -> None:
    run = {"height": 480, "width": 832, "num_frames": 81}
    assert inert(host.resolve("wan2.1-t2v-1.3b", {"fuse_qkv": True}, run=run)) == ["WF-U020"]
    assert inert(host.resolve("wan2.1-t2v-1.3b", {"fuse_qkv": True}, run=run, world=2)) == []
    assert (
        inert(host.resolve("hunyuanvideo", {"fuse_qkv": True}, run={**run, "height": 720, "width": 1280}))
        == []
    )


def test_a_warning_that_a_run_did_not_bear_out_is_not_in_its_report(host: Host) -> None:
    pipe, request = models.p1(), {"taylorseer": {"interval": 2}}
    plan = host.resolve(pipe, request, run={"num_inference_steps": 2})
    assert inert(plan) == ["WF-K031"]
    with host.session(pipe, plan) as session, torch.no_grad():
        assert [warning["code"] for warning in session.report["warnings"]] == ["WF-K031"], "before any run"
        session.pipe(**models.call(num_inference_steps=6))
    assert session.report["effective"]["taylorseer"]["state"] == "effective"
    assert session.report["warnings"] == []


@pytest.mark.parametrize(("steps", "codes"), [(3, ["WF-K052"]), (8, [])])
def test_a_warning_made_for_another_number_of_steps_is_not_in_the_report(
    steps: int, codes: list[str], host: Host
) -> None:
    """With a threshold of 0 nothing is skipped in either run: in the longer one not for want of steps."""
    options = {"residual_diff_threshold": 0.0, "first": 2, "last": 1}
    pipe, request = models.p1(), {"feature_cache": {"algorithm": "firstblock", **options}}
    plan = host.resolve(pipe, request, run={"num_inference_steps": 3})
    assert inert(plan) == ["WF-K052"]
    with host.session(pipe, plan) as session, torch.no_grad():
        session.pipe(**models.call(num_inference_steps=steps))
    assert session.report["effective"]["firstblock"]["state"] == "inert"
    assert [warning["code"] for warning in session.report["warnings"]] == codes
