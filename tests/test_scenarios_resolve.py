"""Faults that people met with other systems, where resolving decides. The report each came from is in its docstring."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from support import models
from support.counting import BlockCalls
from wf_core import Host, Refused

MODEL = "wan2.1-t2v-1.3b"
RUN = {"height": 480, "width": 832, "num_frames": 81}


def orders(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(pairs) for pairs in itertools.permutations(request.items())]


def violations(host: Host, request: dict[str, Any], **more: Any) -> list[Any]:
    with pytest.raises(Refused) as refused:
        host.resolve(MODEL, request, device="h200", **{"run": RUN, **more})
    return list(refused.value.refusal.violations)


def test_b01_an_offloader_and_a_block_cache_are_ordered_by_what_they_declare(host: Host) -> None:
    """vllm-omni#1779: together they die at start-up, by the order in which they were asked for."""
    request = {
        "offload_mode": "async-block",
        "feature_cache": {"algorithm": "firstblock", "residual_diff_threshold": 0.08},
        "vae_temporal_chunk_size": 2,
    }
    plans = [host.resolve(MODEL, order, run=RUN, device="h200") for order in orders(request)]
    names = {tuple(feature.name for feature in plan.features) for plan in plans}
    assert names == {("firstblock", "offload-async-block", "vae-temporal-chunk")}
    assert len({plan.hash for plan in plans}) == 1
    assert len({plan.explain() for plan in plans}) == 1


@pytest.mark.parametrize("steps", [4, 1])
def test_b03_a_schedule_too_short_for_a_cache_is_the_plain_clip_and_said_so(host: Host, steps: int) -> None:
    """LightX2V#426: a feature cache on a few-step model crashes in generation."""
    pipe = models.p1()
    arguments = models.call(num_inference_steps=steps)
    plain = pipe(**models.fresh(arguments)).frames
    cache = {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0, "first": 3, "last": 1}
    with host.session(pipe, {"feature_cache": cache}) as session:
        with BlockCalls(session.pipe.transformer) as seen:
            ours = session.pipe(**models.fresh(arguments)).frames
        claim = session.report["effective"]["teacache"]
    assert torch.equal(ours, plain)
    assert seen.count == steps * 2 * 3
    assert claim["state"] == "inert"
    assert claim["evidence"].get("skipped", 0) == 0


def test_b05_two_techniques_that_claim_the_same_weights(host: Host) -> None:
    """Normalized-Attention-Guidance#19: a patch that reads weights directly fails on a quantised model."""
    for request in orders({"quantization": "int8", "peft_adapter_path": "my-lora"}):
        [violation] = violations(host, request)
        assert violation.code == "WF-C043"
        assert {"quantization", "int8", "peft_adapter_path", "peft-adapter"} <= {*violation.involves}
    calls_the_layers = {"quantization": "int8", "static_cross_kv": True}
    assert len(host.resolve(MODEL, calls_the_layers, run=RUN, device="h200").features) == 2


@pytest.mark.parametrize("dense", [0, 2, 49])
def test_b35_a_grid_that_the_sparse_part_cannot_take_is_refused_whatever_the_warm_up(
    host: Host, dense: int
) -> None:
    """WanVideoWrapper#826: runs through the dense warm-up step and dies at the first sparse step."""
    [violation] = violations(host, {"approximate_attention": {"kind": "sta", "dense_steps": dense}})
    assert violation.code == "WF-Z003"
    assert "this run has [21, 30, 52]" in violation.reason


def test_b45_a_cache_that_decides_for_its_own_tokens_is_refused_beside_sequence_parallelism(
    host: Host,
) -> None:
    """cache-dit#1094: the residual of a shard against the full sequence."""
    cache = {"algorithm": "firstblock", "residual_diff_threshold": 0.08}
    for request in orders({"feature_cache": cache, "sp_degree": 2}):
        [violation] = violations(host, request, world=2)
        assert violation.code == "WF-C030"
        assert {"feature_cache", "firstblock", "sp_degree", "ulysses"} <= {*violation.involves}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8, 12])
def test_b49_the_product_of_the_degrees_is_the_world(host: Host, world: int) -> None:
    """sglang#16532: wrong groups once another kind of parallelism is added. The degrees here divide 12 heads."""
    for sp, cfg in itertools.product((1, 2, 3, 4, 6, 12), (1, 2)):
        request = {"sp_degree": sp, "cfg_parallel": cfg}
        on = sp > 1 or cfg > 1
        if sp * cfg == world or not on:
            host.resolve(MODEL, request, run=RUN, device="h200", world=world, process_group=True)
            continue
        [violation] = violations(host, request, world=world, process_group=True)
        assert violation.code == "WF-C034"
        assert f"multiply to {sp * cfg}, and the world has {world}" in violation.reason


@pytest.mark.parametrize(
    "request_",
    [
        {"feature_cache": "taylorseer", "taylorseer": True},
        {"taylorseer": True, "taylorseer.interval": 4},
        {"tiled": True, "vae_spatial_tiling": True, "vae-tiled-decode": True},
        {"sp_degree": 2, "sequence-parallel": 2},
    ],
    ids=str,
)
def test_b55_asking_twice_is_asking_once(host: Host, request_: dict[str, Any]) -> None:
    """diffusers#2907: enabling a second time is not the same as enabling once."""
    key = next(iter(request_))
    world = 2 if key == "sp_degree" else 1
    once, twice = (
        host.resolve(MODEL, asked, run=RUN, device="h200", world=world)
        for asked in ({key: request_[key]}, request_)
    )
    assert once.hash == twice.hash
    assert len(twice.features) == 1


def test_b75_a_goal_that_stands_for_several_features_says_which_in_plan_and_report(host: Host) -> None:
    """sglang#30016: a profile expands to less than its name says, and no one prints it."""
    pipe = models.p1()
    with host.session(pipe, {"goal": "fast"}) as session:
        plan = session.plan
        session.pipe(**models.call(num_inference_steps=1, output_type="np"))
        report = session.report
    assert plan.chosen
    assert "teacache" not in plan.chosen, "it has no preset for this model, so that it is not among them"
    assert {*report["requested"]} == {"goal", *plan.chosen}
    assert {*report["effective"]} == {feature.name for feature in plan.features}
    for name in plan.chosen:
        assert name in plan.explain()
    assert len(plan.features) == len(plan.chosen)


def test_b75_an_explicit_off_wins_and_is_shown(host: Host) -> None:
    pipe = models.p1()
    expanded = host.resolve(pipe, {"goal": "fast"})
    assert "vae_temporal_chunk_size" in expanded.chosen
    off = host.resolve(pipe, {"goal": "fast", "vae_temporal_chunk_size": "none"})
    assert {*expanded.chosen} - {*off.chosen} == {"vae_temporal_chunk_size"}
    assert off.request_dict()["vae_temporal_chunk_size"] == "none"
    assert "vae_temporal_chunk_size=none" in off.explain()
    with host.session(pipe, off) as session:
        assert session.report["requested"]["vae_temporal_chunk_size"] == "none"
        assert "vae-temporal-chunk" not in session.report["effective"]
