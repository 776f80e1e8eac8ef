"""Every test vector of the feature caches is reproduced: by the plugin that owns the algorithm, or here.

The algorithms here are not offered. They are written as reference functions (`support.other_caches`), so that the
facts about other caches on which our pages and our decisions rely are known to be right.
"""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from support import models
from support import other_caches as other
from support.counting import BlockCalls
from wf_core.api import Differences, ScheduledCache, StaticSchedule, Window, relative_l1, scheduled
from wf_core.testing import CacheDriver, host_of

HERE = Path(__file__).parent
PLUGINS = HERE.parent / "plugins"

OWNED = {
    "lib-teacache": (
        "tea.poly tea.rel_l1 tea.sched.e.1_3b tea.sched.e0.14b.negative tea.sched.synthetic tea.counter tea.reuse "
        "tea.two_branch tea.force tea.domain.failure"
    ).split(),
    "cache-magcache": ("mag.sched mag.hand mag.interp mag.interp.sched mag.retention.odd mag.wan22").split(),
    "cache-taylorseer": "taylor.linear taylor.quadratic blocktaylor.pattern blocktaylor.block".split(),
    "cache-custom": "custom".split(),
    "cache-adacache": "ada.codebook ada.sched ada.metric".split(),
    "cache-blocks": "fb.sched fb.boundary dual.partition dyn".split(),
    "cache-cfg-gate": "cfg.gate cfg.gate.num".split(),
    "cache-easycache": "easycache".split(),
}
"""The vectors of each algorithm that is offered, by the plugin whose tests reproduce them."""

NOT_OFFERED = (
    "pab fastercache.sched fastercache.attn fastercache.fft dicache dbcache scm scm.upstream foca.cachedit "
    "taylor.cachedit taylor.diffusers.sched hicache fora angelslim.hy15 speca.threshold worldcache wf.fixed "
    "wf.adaptive"
).split()
SHARED = "sp.reduce vace.double wan22.switch".split()
"""Facts that several caches rely on. A plugin may keep these, too."""

PARTS = ["fb.sched.lagged"]
"""What is left of a vector whose owner offers a part of it."""

OTHERS = [*NOT_OFFERED, *SHARED]
EVERY = [*(name for names in OWNED.values() for name in names), *OTHERS]
OWNERS = [(plugin, name) for plugin, names in OWNED.items() for name in names]
TIMESTEPS = tuple(1000.0 - 20 * i for i in range(50))


# --- the inventory --------------------------------------------------------------------------------------------------


def kept_in(path: Path) -> set[str]:
    """The vectors of a JSON file, however it is laid out: objects with ``expected``, by their id or their key."""

    def walk(node: Any, key: str) -> set[str]:
        if isinstance(node, dict) and "expected" in node:
            return {node.get("id", key)}
        pairs = (
            node.items()
            if isinstance(node, dict)
            else [("", v) for v in node]
            if isinstance(node, list)
            else []
        )
        return {name for key, value in pairs for name in walk(value, key)}

    return walk(json.loads(path.read_text()), "")


@cache
def kept_by(plugin: str) -> frozenset[str]:
    """The vectors that a plugin's tests keep."""
    return frozenset(name for path in (PLUGINS / plugin / "tests").rglob("*.json") for name in kept_in(path))


@cache
def named_by(plugin: str) -> frozenset[str]:
    """Every string in a plugin's tests, whole: what a docstring mentions is not one."""
    trees = [ast.parse(path.read_text()) for path in (PLUGINS / plugin / "tests").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return frozenset(node.value for node in nodes if isinstance(node.value, str))


def test_the_inventory_is_whole():
    assert len(EVERY) == len(set(EVERY)) == 52


@pytest.mark.parametrize(("plugin", "name"), OWNERS, ids=[name for _, name in OWNERS])
def test_the_owner_reproduces_its_vector(plugin, name):
    assert name in kept_by(plugin), f"{plugin} keeps no vector {name}"
    assert name in named_by(plugin), f"no test of {plugin} names {name}"


def test_nobody_else_keeps_an_owned_vector_and_nobody_an_unknown_one():
    folders = sorted(path.name for path in PLUGINS.iterdir() if (path / "tests").is_dir())
    for plugin in folders:
        assert kept_by(plugin) <= {*OWNED.get(plugin, ()), *OTHERS}, plugin


def test_the_rest_is_kept_and_reproduced_here():
    calls = [node for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Call)]
    used = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "vector"
        and isinstance(call.args[0], ast.Constant)
    }
    assert used == set(vectors()) == {*OTHERS, *PARTS}


def test_a_vector_is_found_in_every_layout(tmp_path):
    row = {"inputs": {}, "expected": {"a": 1}}
    for data in (
        [{"id": "x", **row}],
        {"vectors": [{"id": "x", **row}]},
        {"vectors": {"x": row}},
        {"x": row},
    ):
        path = tmp_path / "vectors.json"
        path.write_text(json.dumps(data))
        assert kept_in(path) == {"x"}
    path.write_text(json.dumps({"coefficients": {"y": [1.0]}, "about": "x"}))
    assert kept_in(path) == set()


# --- the vectors ----------------------------------------------------------------------------------------------------


@cache
def vectors() -> dict[str, dict[str, Any]]:
    rows = json.loads((HERE / "data" / "other-cache-vectors.json").read_text())["vectors"]
    return {row["id"]: row for row in rows}


def vector(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs and the expected values of one vector."""
    return vectors()[name]["inputs"], vectors()[name]["expected"]


def near(name: str, expected: Any) -> Any:
    """``expected`` within the tolerance of the vector."""
    return pytest.approx(expected, rel=0, abs=vectors()[name]["tolerance"])


def test_pab():
    given, expected = vector("pab")
    for name, steps in expected.items():
        assert other.pab(TIMESTEPS, int(name.rpartition("=")[2]), *given["range"]) == steps, name


def test_fastercache_schedule():
    given, expected = vector("fastercache.sched")
    uncond = other.fastercache_uncond(TIMESTEPS, *given["uncond_range"], given["uncond_every"])
    assert uncond == expected["uncond_computed"]
    skipped = other.fastercache_attention_skipped(
        TIMESTEPS, uncond, *given["attn_range"], given["attn_every"]
    )
    assert skipped == expected["attention_skipped"]


def test_fastercache_attention():
    given, expected = vector("fastercache.attn")
    outputs = other.TwoNewest(given["w"])
    for output in given["o_computed"].values():
        outputs.computed(output)
    assert [outputs.skipped(), outputs.skipped()] == near("fastercache.attn", list(expected.values()))


def test_fastercache_attention_is_a_line_continued_by_half_a_gap():
    """w = 0.5: the core's continuation of order 1, one step after two samples that are two steps apart."""
    given, expected = vector("fastercache.attn")
    assert given["w"] == 0.5
    line = Differences(1)
    for step, output in given["o_computed"].items():
        line.add(int(step), torch.tensor(output, dtype=torch.float64))
    assert float(line.continued(3)) == near("fastercache.attn", expected["o3"])


def test_fastercache_frequency_split():
    _, expected = vector("fastercache.fft")
    k = torch.arange(25, dtype=torch.float64).reshape(5, 5)
    cond, uncond = k / 10, torch.sin(k)
    found = other.fastercache_uncond_from(cond + 0.1 * torch.cos(k), cond, uncond, low=1.1, high=1.0)
    tolerance = vectors()["fastercache.fft"]["tolerance"]
    assert float((found - torch.tensor(expected["uncond1"], dtype=torch.float64)).abs().max()) <= tolerance
    same = other.fastercache_uncond_from(cond, cond, uncond, low=1.0, high=1.0)
    assert torch.allclose(same, uncond), "with the same input and no weights it is the output itself"


def test_dicache():
    given, expected = vector("dicache")
    steps = other.accumulated_change(given["probe"], given["thr"], Window(given["start"], 0))
    assert steps == expected["compute_steps"]
    gammas = [other.dicache_gamma(given["q_-2"], given["q_-1"], now) for now in given["q_now"]]
    assert gammas == near("dicache", expected["gamma_clip_1_2"])
    residuals = [other.on_the_line(given["R_-2"], given["R_-1"], gamma) for gamma in gammas]
    assert residuals == near("dicache", expected["residual"])


def test_dbcache():
    given, expected = vector("dbcache")
    arguments = given["Fn_residual"], given["thr"], given["warmup"]
    variants = ({}, {"max_continuous": 1}, {"max_cached": 3})
    assert [other.dbcache(*arguments, **limits) for limits in variants] == list(expected.values())


def test_masks_for_28_steps():
    _, expected = vector("scm")
    for policy in other.SCM_28:
        mask = other.scm(policy, 28)
        assert (mask, mask.count("1")) == (expected[policy], expected[f"{policy}_computed"])


def test_masks_for_other_numbers_of_steps():
    given, expected = vector("scm.upstream")
    assert {name.partition("/")[0] for name in expected} == set(given["policies"])
    for name, mask in expected.items():
        policy, _, total = name.partition("/")
        assert other.scm(policy, int(total)) == mask, name


def test_masks_of_16_to_27_steps_leave_very_long_gaps():
    masks = vector("scm.upstream")[1]
    gaps = {name: other.longest_gap(masks[name]) for name in ("fast/16", "ultra/16", "ultra/20", "fast/28")}
    assert gaps == {"fast/16": 10, "ultra/16": 13, "ultra/20": 15, "fast/28": 5}


def test_foca_of_cachedit():
    given, expected = vector("foca.cachedit")
    dense = {int(step): value for step, value in given["dense"].items()}
    assert other.foca(dense, given["N"]) == near("foca.cachedit", expected["series"])


def test_taylor_of_cachedit():
    given, expected = vector("taylor.cachedit")
    dense = {int(step): value for step, value in given["dense"].items()}
    assert other.taylor_cachedit(dense, given["N"]) == near("taylor.cachedit", expected["series"])


def test_taylor_schedule_of_diffusers():
    given, expected = vector("taylor.diffusers.sched")
    variants = {
        "interval5_before3": (5, 3),
        "interval4_before3": (4, 3),
        "interval5_before3_after25": (5, 3, 25),
    }
    assert {name: other.taylor_diffusers(given["N"], *v) for name, v in variants.items()} == expected


def test_hicache():
    _, expected = vector("hicache")
    values = [other.hicache((1.0, 0.1, 0.02, -0.01), distance) for distance in (1, 2, 3)]
    assert values == near("hicache", expected["value"])
    assert [other.hermite(n, 0.5) for n in range(4)] == near("hicache", list(expected["H"].values()))


def test_fora():
    _, expected = vector("fora")
    assert other.fora(50, 3) == expected["n=3"]
    assert other.fora(50, 5) == expected["n=5"]
    assert other.fora_upstream(50, 3) == expected["upstream_desc_N50_n3"]


def test_deepcache_of_angelslim():
    _, expected = vector("angelslim.hy15")
    steps = other.deepcache(50, start=11, end=45, every=4)
    assert (steps, len(steps)) == (expected["compute_steps"], expected["computed"])


def test_speca_threshold():
    _, expected = vector("speca.threshold")
    thresholds = [other.speca_threshold(step, 50, 1.0, 0.1) for step in expected["s"]]
    assert thresholds == near("speca.threshold", expected["thr"])
    assert other.speca_threshold(49, 50, 0.5, 0.1) == 0.1, "never below 0.1"


def test_worldcache():
    given, expected = vector("worldcache")
    thresholds = [
        other.worldcache_threshold(given["thr"], step, given["N"], given["alpha"], motion)
        for step, motion in given["cases"]
    ]
    assert thresholds == near("worldcache", expected["thr"])
    gammas = [other.worldcache_gamma(given["d_prev"], now) for now in given["d_cur"]]
    assert gammas == near("worldcache", expected["gamma"])


def test_fixed_step_cache():
    _, expected = vector("wf.fixed")
    skip = {0, 3, 4, 6, 9}
    steps = other.computed_where(10, lambda i: i not in skip, Window(1, 1))
    assert sorted(set(range(10)) - set(steps)) == expected["hits"]
    for scale in (0, 1):
        assert other.replayed(lambda s: float(s * s), 10, skip, scale) == expected[f"out_delta{scale}"]


def test_adaptive_residual_cache():
    given, expected = vector("wf.adaptive")
    assert other.accumulated_change(given["signal"], 0.08, Window(1, 1), 3) == expected["compute_steps"]


def test_first_block_with_a_lagged_reference():
    given, expected = vector("fb.sched.lagged")
    steps = other.lagged_first_block(given["first_block_residual"], given["threshold"])
    assert steps == expected["compute_steps"]


# --- facts that several caches rely on ------------------------------------------------------------------------------


def test_ranks_add_up_before_they_divide():
    given, expected = vector("sp.reduce")
    shards = [(rank["num"], rank["den"]) for rank in given.values()]
    assert other.over_ranks(shards) == near("sp.reduce", expected["correct"])
    ratios = [numerator / denominator for numerator, denominator in shards]
    assert sum(ratios) / len(ratios) == near("sp.reduce", expected["wrong_mean_of_ratios"])


def test_the_distance_of_a_sharded_tensor_is_that_of_the_sums():
    """What one rank would measure on the whole: the core's distance on both shards side by side."""
    given, expected = vector("sp.reduce")
    tokens = 4
    older = torch.cat([torch.full((1, tokens), rank["den"] / tokens) for rank in given.values()], dim=1)
    moved = torch.cat([torch.full((1, tokens), rank["num"] / tokens) for rank in given.values()], dim=1)
    assert float(relative_l1(older + moved, older)) == pytest.approx(expected["correct"], abs=1e-6)


F, HINTS = (0.5, 0.4, 0.1, 0.2), {0: 0.3, 2: 0.2}


class EverySecond(ScheduledCache):
    """Computes step 0 and adds its stack residual at every later step."""

    def schedule(self, run, branch):
        return StaticSchedule.of(run, lambda forced: scheduled(run, Window(), lambda i: "", forced))


def test_hints_between_blocks_are_in_the_residual_once():
    _, expected = vector("vace.double")
    adds = [amount for index, own in enumerate(F) for amount in (own, HINTS.get(index, 0.0))]
    driver = CacheDriver(EverySecond(), [lambda x, a=a: x + a for a in adds])
    driver.begin(driver.view(2))
    x = torch.ones(1, 2, 4, dtype=torch.float64)
    dense, skipped = (float(driver.call(index, x, total=2).mean()) for index in range(2))
    assert driver.computed() == [0]
    assert dense == near("vace.double", expected["dense"])
    assert skipped == near("vace.double", expected["skip_correct"])
    doubled = skipped + sum(HINTS.values())
    assert doubled == near("vace.double", expected["skip_diffusers_0.42_bug"])


def test_hints_of_a_real_model_are_in_the_residual_once():
    """The same input at two steps of a firstblock session: what is skipped gives what was computed."""
    model = models.vace()[0].transformer
    g = torch.Generator().manual_seed(4)
    inputs = {
        **models.w_inputs(seed=3),
        "hidden_states": torch.randn(1, 16, 3, 8, 8, generator=g),
        "control_hidden_states": 3 * torch.randn(1, 96, 3, 8, 8, generator=g),
    }
    request = {
        "feature_cache": {"algorithm": "firstblock", "residual_diff_threshold": 10.0, "first": 0, "last": 0}
    }
    host = host_of("wf_plugin_cache_blocks", "wf_plugin_wan")
    with torch.no_grad(), host.session(model, request) as session:
        with session.run(num_inference_steps=2):
            with BlockCalls(session.model) as computed, session.model.cache_context("cond"):
                dense = session.model(**inputs)[0]
            with BlockCalls(session.model) as skipped, session.model.cache_context("cond"):
                again = session.model(**inputs)[0]
    assert (computed.count, skipped.count) == (2, 1)
    assert float((again - dense).abs().max()) < 1e-5
    with torch.no_grad():
        without = model(**inputs, control_hidden_states_scale=torch.zeros(2))[0]
    assert float((without - dense).abs().max()) > 0.05, "the hints matter in this model"


def test_high_noise_steps_of_two_experts():
    given, expected = vector("wan22.switch")
    for name, counts in expected.items():
        total, shift, boundary = (float(part.partition("=")[2]) for part in name.split()[1:])
        for line, helper in (
            ("wan_unipc_and_diffusers", "wan_unipc"),
            ("magcache_helper", "magcache_helper"),
        ):
            ends = given[line]["s0"], given[line]["s1"]
            assert other.high_noise_steps(int(total), shift, boundary, *ends) == counts[helper], (name, line)


def test_high_noise_steps_of_the_scheduler_itself():
    for name, counts in vector("wan22.switch")[1].items():
        total, shift, boundary = (float(part.partition("=")[2]) for part in name.split()[1:])
        scheduler = models.unipc(shift)
        scheduler.set_timesteps(int(total))
        assert int((scheduler.timesteps >= 1000 * boundary).sum()) == counts["wan_unipc"], name
