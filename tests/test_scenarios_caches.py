"""Faults that people met with other systems, asked of every cache; and what every cache owes a run.

`REQUESTS` has one request per cache that computes and skips on six to ten steps of a tiny random model, which has no
model id: numbers are given where a preset would be looked up. `NEVER` is the same cache told to skip nothing, and
`DENSE` one whose always-computed steps leave none of a short run. The report that a scenario came from is named in its
docstring. Blocks are counted on the model, not in the cache's own account.
"""

from __future__ import annotations

import gc
import inspect
import json
import weakref
from contextlib import nullcontext
from functools import lru_cache

import pytest
import torch
from diffusers import WanVACETransformer3DModel
from diffusers.hooks import apply_group_offloading

from support import models
from support.counting import BlockCalls
from wf_core import Refused
from wf_core.isolation.fingerprint import fingerprint
from wf_core.testing import seeded


def asked(algorithm, **options):
    return {"feature_cache": {"algorithm": algorithm, **options}}


POLYNOMIAL = {"coefficients": [1.0, 0.0], "threshold": 10.0}
SIMILAR = {"residual_diff_threshold": 10.0, "first": 1, "last": 1}
RATIOS = [1.0, 0.99, 0.99, 0.99, 0.99, 0.99]

REQUESTS = {
    "teacache": asked("teacache", **POLYNOMIAL),
    "custom": asked("custom", **POLYNOMIAL),
    "magcache": asked("magcache", ratios=RATIOS, threshold=1.0, retention_ratio=0.0),
    "adacache": asked("adacache", thresholds=[1.0], rates=[2]),
    "taylorseer": asked("taylorseer", interval=2),
    "blocktaylorseer": asked("blocktaylorseer", pattern=[True, False]),
    "firstblock": asked("firstblock", **SIMILAR),
    "dualblock": asked("dualblock", front_blocks=1, tail_blocks=1, **SIMILAR),
    "dynamicblock": asked("dynamicblock", **SIMILAR),
    "easycache": asked("easycache", threshold=10.0, first=2, last=1),
    "cfg-gate": {"cfg_gate_step": 0.5},
}
BLOCK_KINDS = ("firstblock", "dualblock", "dynamicblock")
OF_A_TRANSFORMER = tuple(
    name for name in REQUESTS if name != "cfg-gate"
)  # the gate is one of a pipeline's guidance
LOOK_AT_VALUES = ("adacache", *BLOCK_KINDS, "easycache")
WITH_A_LIMIT = ("teacache", "custom", "magcache", *BLOCK_KINDS, "easycache")


def changed(name, **options):
    """This cache's request with other options."""
    ((key, request),) = REQUESTS[name].items()
    return {key: {**request, **options}}


FULL_GUIDANCE = {"cfg_gate_step": 0.9999999999}  # 1.0 asks for no feature at all
NEVER = {
    **{n: changed(n, threshold=0.0) for n in ("teacache", "custom", "magcache", "adacache", "easycache")},
    **{name: changed(name, residual_diff_threshold=0.0) for name in BLOCK_KINDS},
    "taylorseer": changed("taylorseer", interval=1),
    "blocktaylorseer": changed("blocktaylorseer", pattern=[True]),
    "cfg-gate": FULL_GUIDANCE,
}
DENSE = {
    **{name: changed(name, first=3, last=1) for name in OF_A_TRANSFORMER if name != "magcache"},
    "magcache": changed("magcache", retention_ratio=0.75, force_last=True),
    "cfg-gate": FULL_GUIDANCE,
}

BRANCHES = ("cond", "uncond")
LAYERS = {"w": 4, "p1": 3}
STEPS = (1000.0, 900.0, 800.0, 650.0, 500.0, 300.0)
LONG = tuple(1000.0 - 50 * index for index in range(19))

every = pytest.mark.parametrize("cache", REQUESTS)
each = pytest.mark.parametrize("cache", OF_A_TRANSFORMER)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def base():
    return models.w()


@pytest.fixture(scope="module")
def pipe():
    return models.p1()


@pytest.fixture(scope="module")
def experts():
    return models.p2()


@pytest.fixture(scope="module")
def plain(pipe):
    """The pipeline's own frames for these changes of the usual call."""
    known = {}

    def frames(**changes):
        key = repr(sorted(changes.items()))
        if key not in known:
            known[key] = pipe(**models.call(**changes)).frames
        return known[key]

    with torch.no_grad():
        yield frames


def account(session):
    (row,) = session.report["steps"]["caches"].values()
    return row


def rows(session):
    return account(session)["branches"]


def skips(session):
    return sum(len(row["skipped"]) for row in rows(session).values())


def claim(session):
    (found,) = session.report["effective"].values()
    return found


@lru_cache
def text(branch):
    """One tensor per branch, as a pipeline has; far apart, so that one branch's values in the other are seen."""
    inputs = models.w_inputs(seed=100 if branch == "cond" else 107)
    return inputs["encoder_hidden_states"] * (1.0 if branch == "cond" else 5.0)


def step(model, index, timestep, branch="cond", *, labelled=True, scale=1.0, **size):
    """One call of a bare transformer."""
    inputs = models.w_inputs(seed=3 + index, timestep=timestep, **size)
    inputs["hidden_states"] = inputs["hidden_states"] * scale
    inputs["encoder_hidden_states"] = text(branch)
    with model.cache_context(branch) if labelled else nullcontext():
        return model(**inputs)[0]


def drive(model, timesteps, branches=("cond",), **more):
    """As a sampler would; the outputs by branch."""
    outputs = {branch: [] for branch in branches}
    for index, timestep in enumerate(timesteps):
        for branch in branches:
            outputs[branch].append(step(model, index, timestep, branch, **more))
    return outputs


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def cancel_at(step):
    def cancel(pipe, index, timestep, values):
        if index == step:
            raise RuntimeError("cancelled")
        return values

    return cancel


# --- scenarios ------------------------------------------------------------------------------------------------------


def wrap_forwards(model):
    """Every block's forward is a generic function, and its signature tells nothing."""
    for block in model.blocks:
        original = block.forward
        block.forward = lambda *args, original=original, **kwargs: original(*args, **kwargs)


@each
def test_b01_a_block_whose_forward_was_replaced_is_no_obstacle(host, base, cache):
    """vllm-omni#1779: the offloader had replaced each block's forward; the cache knew no such signature, and died."""
    plain = step(base, 0, STEPS[0])
    found = []
    for wrapped in (False, True):
        with host.session(base, REQUESTS[cache]) as session:
            if wrapped:
                wrap_forwards(session.model)
                assert list(inspect.signature(session.model.blocks[0].forward).parameters) == [
                    "args",
                    "original",
                    "kwargs",
                ]
            with session.run(timesteps=STEPS):
                outputs = drive(session.model, STEPS)["cond"]
            found.append((outputs, account(session)))
    (alone, hits), (ours, hits_too) = found
    assert torch.equal(ours[0], plain)
    assert same(ours, alone)
    assert hits == hits_too and hits["skipped"] > 0


def test_b01_a_base_that_the_librarys_offloader_has_hooked_is_refused_before_it_is_touched(host):
    """vllm-omni#1779: a copy would run the original's hooks, so that no cache can stand in it."""
    hooked = models.w()
    apply_group_offloading(hooked, torch.device("cpu"), torch.device("cpu"), "block_level", 1)
    for request in REQUESTS.values():
        with pytest.raises(Refused, match=r"WF-M003.*group_offloading"):
            host.session(hooked, request)


@every
def test_b01_the_order_of_a_request_does_not_matter(host, pipe, cache):
    """vllm-omni#1779: whichever of two plugins that stand at the blocks is named first, they stand in one order."""
    other, own = {"attention_backend": "math"}, REQUESTS[cache]
    found = []
    for request in ({**other, **own}, {**own, **other}, other, own):
        with host.session(pipe, request) as session:
            frames = session.pipe(**models.call(num_inference_steps=6)).frames
            order = tuple(feature.name for feature in session.plan.features)
            found.append((order, frames, session.report["steps"]))
    (order, frames, steps), (order_too, frames_too, steps_too), _, (_, _, alone) = found
    assert set(order) == {"math", cache} and order == order_too
    assert torch.equal(frames, frames_too)
    assert steps == steps_too
    assert steps["forwards"] == alone["forwards"], "it skips as often as it does alone"


@every
@pytest.mark.parametrize("steps", [4, 1])
def test_b03_few_steps_are_the_plain_run_and_said_so(host, pipe, plain, cache, steps):
    """LightX2V#426: a feature cache on a few-step model crashes in generation."""
    request = DENSE[cache] if steps == 4 else REQUESTS[cache]
    with host.session(pipe, request) as session:
        if (cache, steps) == ("cfg-gate", 1):
            with (
                BlockCalls(session.pipe.transformer) as seen,
                pytest.raises(Refused, match=r"WF-B002.*0\.5 of 1"),
            ):
                session.pipe(**models.call(num_inference_steps=1))
            assert seen.count == 0, "half of one step is none: refused before any model call"
            return
        with BlockCalls(session.pipe.transformer) as seen:
            ours = session.pipe(**models.call(num_inference_steps=steps)).frames
        (fallback,) = session.report["fallbacks"]
        assert f"all {steps} steps are computed" in fallback["reason"]
        assert claim(session)["state"] == "inert"
    if cache != "cfg-gate" and (cache, steps) != (
        "magcache",
        4,
    ):  # whose shares of the steps no manifest computes
        [warning] = host.resolve(pipe, request, run={"num_inference_steps": steps}).warnings
        assert warning.level == "inert" and warning.reason.startswith(f"all {steps} steps are computed")
        assert host.resolve(pipe, REQUESTS[cache], run={"num_inference_steps": 6}).warnings == ()
    assert torch.equal(ours, plain(num_inference_steps=steps))
    assert seen.count == steps * len(BRANCHES) * LAYERS["p1"]


@every
def test_b03_the_pipelines_own_number_of_steps(host, pipe, cache):
    """LightX2V#426, with the number of steps left out of the call: the pipeline's default is what is planned for."""
    arguments = models.call()
    del arguments["num_inference_steps"]
    with host.session(pipe, REQUESTS[cache]) as session:
        session.pipe(**arguments)
        assert session.report["steps"]["total"] == 50
        assert claim(session)["state"] == "effective"
        assert {len(row["computed"]) + len(row["skipped"]) for row in rows(session).values()} == {50}


@each
def test_b09_hits_are_what_the_model_did_not_compute(host, base, cache):
    """vllm-omni#4632: zero hits, zero gain, no complaint. What the report calls effective did save blocks."""
    with host.session(base, REQUESTS[cache]) as session:
        with BlockCalls(session.model) as seen, session.run(timesteps=STEPS):
            drive(session.model, STEPS)
        assert claim(session)["state"] == "effective"
        assert session.report["fallbacks"] == []
    assert seen.count < len(STEPS) * LAYERS["w"]


@each
def test_b09_a_cache_that_skips_nothing_is_inert_and_says_so(host, base, cache):
    plain = drive(base, STEPS)["cond"]
    with host.session(base, NEVER[cache]) as session:
        with BlockCalls(session.model) as seen, session.run(timesteps=STEPS):
            ours = drive(session.model, STEPS)["cond"]
        assert claim(session)["state"] == "inert"
        assert skips(session) == 0
    assert same(ours, plain)
    assert seen.count == len(STEPS) * LAYERS["w"]


FOUR_FIRST = {
    "teacache": changed("teacache", first=4, last=0),
    "custom": changed("custom", first=4, last=0),
    "magcache": changed("magcache", ratios=[1.0, *[0.99] * 18], retention_ratio=4 / 19),
    **{name: changed(name, first=4, last=0) for name in (*BLOCK_KINDS, "easycache")},
}


def steps_with_less_work(host, base, request, branches):
    """By branch: the steps at which fewer blocks than all ran."""
    less = {branch: [] for branch in branches}
    with host.session(base, request) as session, session.run(timesteps=LONG):
        for index, timestep in enumerate(LONG):
            for branch in branches:
                with BlockCalls(session.model) as seen:
                    step(session.model, 0, timestep, branch)
                if seen.count < LAYERS["w"]:
                    less[branch].append(index)
    return less


@pytest.mark.parametrize("cache", WITH_A_LIMIT)
@pytest.mark.parametrize(
    "branches", [("cond",), BRANCHES, BRANCHES[::-1]], ids=["one", "cond first", "uncond first"]
)
def test_b11_no_two_skips_in_a_row(host, base, cache, branches):
    """cache-dit#1114: with 'at most one cached step in a row', two occur after a forced computed step."""
    ((key, options),) = FOUR_FIRST[cache].items()
    less = steps_with_less_work(host, base, {key: {**options, "max_skip": 1}}, branches)
    assert less == {branch: [4, 6, 8, 10, 12, 14, 16, 18] for branch in branches}


@pytest.mark.parametrize("cache", WITH_A_LIMIT)
@pytest.mark.parametrize("limit", [2, 3])
def test_b11_no_run_of_skips_is_longer_than_the_limit(host, base, cache, limit):
    ((key, options),) = FOUR_FIRST[cache].items()
    less = steps_with_less_work(host, base, {key: {**options, "max_skip": limit}}, ("cond",))["cond"]
    assert less[:limit] == list(range(4, 4 + limit))
    assert len(less) >= 15 * limit // (limit + 1)
    assert not any({*range(index, index + limit + 1)} <= {*less} for index in less)


@pytest.mark.parametrize("interval", [2, 3, 4])
@pytest.mark.parametrize("cache", ["taylorseer", "blocktaylorseer", "adacache"])
def test_b11_a_schedule_skips_one_less_than_its_interval(host, base, cache, interval):
    option = {
        "taylorseer": {"interval": interval, "last": 0},
        "blocktaylorseer": {"pattern": [True, *[False] * (interval - 1)], "last": 0},
        "adacache": {"rates": [interval], "last": 0},
    }[cache]
    less = steps_with_less_work(host, base, changed(cache, **option), ("cond",))["cond"]
    free = range(1 if cache == "adacache" else 0, len(LONG))  # its first two steps measure
    assert less == [index for at, index in enumerate(free) if at % interval]


@each
def test_b13_requests_of_different_size_in_one_session(host, base, cache):
    """sglang#17140: the second request dies with a shape mismatch in the cache."""

    def request(session, height):
        with session.run(timesteps=STEPS):
            with BlockCalls(session.model) as seen:
                first = step(session.model, 0, STEPS[0], height=height)
            assert seen.count == LAYERS["w"]
            rest = [step(session.model, i, STEPS[i], height=height) for i in range(1, len(STEPS))]
        assert skips(session) > 0
        return [first, *rest]

    with host.session(base, REQUESTS[cache]) as session:
        one, larger, again = (request(session, height) for height in (8, 12, 8))
    with host.session(base, REQUESTS[cache]) as session:
        alone = request(session, 12)
    assert same(one, again)
    assert same(larger, alone)


@each
def test_b13_another_size_in_the_middle_of_a_request_is_computed(host, base, cache):
    """What was kept fits no other geometry: the call is computed and equals the plain one."""
    sizes = [8, 8, 8, 12, 8, 12]
    with host.session(base, REQUESTS[cache]) as session, session.run(timesteps=STEPS):
        for index, height in enumerate(sizes):
            ours = step(session.model, index, STEPS[index], height=height)
            if index >= 3:
                assert torch.equal(ours, step(base, index, STEPS[index], height=height)), index


@every
def test_b15_a_cancelled_run_does_not_break_the_next(host, pipe, cache):
    """ComfyUI_Patches_ll#7: cancel the first run and every later run with any cache is broken until restart."""
    arguments = models.call(num_inference_steps=6)
    before = fingerprint(pipe, contents=True)
    with host.session(pipe, REQUESTS[cache]) as session:
        first = session.pipe(**models.fresh(arguments)).frames
        for at in (0, 3, 4):
            with pytest.raises(RuntimeError, match="cancelled"):
                session.pipe(**models.fresh(arguments), callback_on_step_end=cancel_at(at))
            assert session.report["run"]["state"] == "aborted"
            assert session.held_bytes() == 0
            assert torch.equal(session.pipe(**models.fresh(arguments)).frames, first)
        tall = session.pipe(**models.fresh({**arguments, "height": 48})).frames
        assert skips(session) > 0
    assert tall.shape[-2] == 6
    assert before.diff(fingerprint(pipe, contents=True), run_state=False) == []


@each
def test_b17_two_stages_of_other_length_and_size(host, base, cache):
    """ComfyUI-TeaCache#17: 20 steps and then 8 at twice the size fails in the second."""
    long = tuple(1000.0 - 45 * index for index in range(20))
    short = tuple(1000.0 - 110 * index for index in range(8))

    def stage(session, timesteps, size):
        with session.run(timesteps=timesteps):
            outputs = drive(session.model, timesteps, height=size, width=size)["cond"]
        return outputs, session.report["steps"]

    stages = [(long, 4), (short, 8)]
    with host.session(base, REQUESTS[cache]) as session:
        together = [stage(session, *one) for one in stages]
    for (outputs, steps), one in zip(together, stages, strict=True):
        with host.session(base, REQUESTS[cache]) as session:
            expected, expected_steps = stage(session, *one)
        assert same(outputs, expected)
        assert steps == expected_steps
        assert steps["total"] == len(one[0])
        ((row),) = next(iter(steps["caches"].values()))["branches"].values()
        assert row["computed"][0] == 0 and row["skipped"]
        assert row["computed"][-1] == len(one[0]) - 1 or cache == "magcache", (
            "the last step, unless told otherwise"
        )


@each
def test_b25_branches_have_separate_state(host, base, cache):
    """vllm-omni#2860: cond and uncond shared one state. The oracle is one model per branch."""
    with host.session(base, REQUESTS[cache]) as session, session.run(timesteps=STEPS):
        outputs = drive(session.model, STEPS, BRANCHES)
    for branch in BRANCHES:
        with host.session(base, REQUESTS[cache]) as session:
            with session.run(timesteps=STEPS):
                oracle = drive(session.model, STEPS, (branch,))
            assert skips(session) > 0
        assert same(outputs[branch], oracle[branch]), branch


@each
def test_b25_the_order_of_the_branches_does_not_matter(host, base, cache):
    found = []
    for branches in (BRANCHES, BRANCHES[::-1]):
        with host.session(base, REQUESTS[cache]) as session, session.run(timesteps=STEPS):
            found.append(drive(session.model, STEPS, branches))
    assert all(same(found[0][branch], found[1][branch]) for branch in BRANCHES)


@each
def test_b25_a_cache_that_never_skips_gives_both_branches_the_plain_result(host, base, cache):
    plain = drive(base, STEPS, BRANCHES)
    with host.session(base, NEVER[cache]) as session, session.run(timesteps=STEPS):
        outputs = drive(session.model, STEPS, BRANCHES)
    assert all(same(outputs[branch], plain[branch]) for branch in BRANCHES)


@each
def test_b27_a_guidance_interval_labels_every_call_right(host, base, cache):
    """sglang#16396: the branch was told from the parity of a call counter."""
    timesteps = tuple(1000.0 - 90 * index for index in range(10))

    def interval(session, uncond_steps):
        outputs = []
        with session.run(timesteps=timesteps):
            for index, timestep in enumerate(timesteps):
                outputs.append(step(session.model, index, timestep))
                if index in uncond_steps:
                    step(session.model, index, timestep, "uncond")
        return outputs, session.report["steps"]

    with host.session(base, REQUESTS[cache]) as session:
        ours, steps = interval(session, range(3, 8))
        without, steps_without = interval(session, ())
    assert steps["calls"] == {"transformer/cond": 10, "transformer/uncond": 5}
    assert same(ours, without)
    (found,), (alone,) = steps["caches"].values(), steps_without["caches"].values()
    assert found["branches"]["transformer/cond"] == alone["branches"]["transformer/cond"]
    assert found["branches"]["transformer/cond"]["skipped"]
    uncond = found["branches"]["transformer/uncond"]
    assert sorted(uncond["computed"] + uncond["skipped"]) == [3, 4, 5, 6, 7]
    assert uncond["computed"][0] == 3, "nothing of this branch was kept before"


@each
def test_b29_a_driver_without_labels(host, base, cache):
    """diffusers#12012: raises where the pipeline labels nothing. One conditioning is one branch, two are ambiguous."""
    plain = drive(base, STEPS, BRANCHES, labelled=False)
    with host.session(base, REQUESTS[cache]) as session:
        with session.run(timesteps=STEPS):
            drive(session.model, STEPS, labelled=False)
        assert session.report["identity"] == "ordinal"
        assert claim(session)["state"] == "effective"
        with session.run(timesteps=STEPS):
            outputs = drive(session.model, STEPS, BRANCHES, labelled=False)
        report = session.report
    assert report["identity"].startswith("ambiguous")
    assert report["fallbacks"]
    for branch in BRANCHES:
        assert torch.equal(outputs[branch][-1], plain[branch][-1])


@each
def test_b37_a_branch_of_nothing_but_nan_does_not_reach_the_other(host, base, cache):
    """ComfyUI#8573: numbers that are none in one place, and the whole clip is black."""
    with host.session(base, REQUESTS[cache]) as session, session.run(timesteps=STEPS):
        alone = drive(session.model, STEPS)["cond"]
    with host.session(base, REQUESTS[cache]) as session, session.run(timesteps=STEPS):
        for index, timestep in enumerate(STEPS):
            for branch in BRANCHES:  # easycache goes by the first
                scale = 1.0 if branch == "cond" else torch.nan
                output = step(session.model, index, timestep, branch, scale=scale)
                if branch == "cond":
                    assert torch.equal(output, alone[index])
                else:
                    assert output.isnan().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("cache", LOOK_AT_VALUES)
def test_b37_a_step_that_is_not_finite_is_not_taken_for_a_similar_one(host, base, cache, bad):
    """A comparison with NaN is false either way round: what looks at values computes, and says so in the report."""
    at = 5  # adacache measures at every other step
    with host.session(base, REQUESTS[cache]) as session:
        with session.run(timesteps=LONG):
            for index, timestep in enumerate(LONG):
                output = step(session.model, 0, timestep, scale=bad if index == at else 1.0)
                if index > at + 2:
                    assert output.isfinite().all(), index
        assert skips(session) > 0
        reasons = rows(session)["transformer/cond"]["reasons"]
        found = [index for index, reason in reasons.items() if "not-finite" in reason]
        assert found and {int(index) for index in found} <= {at, at + 1, at + 2}
        assert any("not a finite number" in entry["reason"] for entry in session.report["fallbacks"])


@every
def test_b37_the_request_after_one_of_nan_is_the_first_one_again(host, pipe, cache):
    arguments = models.call(num_inference_steps=6)
    bad = {**models.fresh(arguments), "prompt_embeds": arguments["prompt_embeds"] * torch.nan}
    with host.session(pipe, REQUESTS[cache]) as session:
        first = session.pipe(**models.fresh(arguments)).frames
        assert session.pipe(**bad).frames.isnan().all()
        assert session.held_bytes() == 0
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, first)
    assert first.isfinite().all()


def live():
    """Bytes of the distinct storages of all tensors that the collector finds, beside those that it was told to skip."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.fixture
def collector():
    """``collector()`` hides what there is now from `live`, which looks at much fewer objects then."""
    yield gc.freeze
    gc.unfreeze()


@each
def test_b83_held_bytes_are_what_the_collector_finds(host, base, collector, cache):
    """ComfyUI-SeedVR2#534: a kept model can never be freed, while the purge tool says that the store is empty."""
    with host.session(base, REQUESTS[cache]) as session:
        with session.run(timesteps=STEPS):  # what the first run makes for good
            drive(session.model, STEPS, BRANCHES)
        gc.collect()
        collector()
        with session.run(timesteps=STEPS):
            drive(session.model, STEPS[:3], BRANCHES)
            held = session.held_bytes()
            assert held == live() > 0
        assert session.held_bytes() == live() == 0
        with pytest.raises(RuntimeError, match="abort"), session.run(timesteps=STEPS):
            drive(session.model, STEPS[:3], BRANCHES)
            raise RuntimeError("abort")
        assert session.held_bytes() == live() == 0
        assert session.report["memory"] == {"held_bytes_at_end": held, "held_bytes": 0}
        model = weakref.ref(session.model)
    assert session.held_bytes() == 0
    gc.unfreeze()
    del session
    gc.collect()
    assert model() is None, "the copy is freed with its session"


@every
@pytest.mark.parametrize("steps", [2, 5, 7])
def test_b87_any_number_of_steps(host, pipe, cache, steps):
    """sglang#16962: an assertion about allowed totals, in a one-step warm-up. One step alone: see B03."""
    with host.session(pipe, REQUESTS[cache]) as session:
        frames = session.pipe(**models.call(num_inference_steps=steps)).frames
        state, fallbacks = claim(session)["state"], session.report["fallbacks"]
        saved = skips(session)
    assert frames.isfinite().all()
    assert (state == "effective") == (saved > 0)
    assert saved or any("all 2 steps are computed" in entry["reason"] for entry in fallbacks)


@every
def test_b87_one_step_to_warm_up_and_then_the_run(host, pipe, cache):
    arguments = models.call(num_inference_steps=6)
    with host.session(pipe, REQUESTS[cache]) as session:
        alone = session.pipe(**models.fresh(arguments)).frames
    with host.session(pipe, REQUESTS[cache]) as session:
        with pytest.raises(Refused, match="give at least 1") if cache == "cfg-gate" else nullcontext():
            session.pipe(**models.call(num_inference_steps=1))
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, alone)


def test_every_cache_of_this_repository_is_asked(host):
    of_the_kind = [r for r in host.plugins if r.kind == "feature-cache" and r.manifest is not None]
    assert {feature.name for r in of_the_kind for feature in r.manifest.features} == set(REQUESTS)


# --- what every cache owes a run ------------------------------------------------------------------------------------


@every
def test_never_skipping_is_the_plain_run(host, pipe, plain, cache):
    before = fingerprint(pipe, contents=True)
    with host.session(pipe, NEVER[cache]) as session:
        with BlockCalls(session.pipe.transformer) as seen:
            ours = session.pipe(**models.call(num_inference_steps=6)).frames
        assert claim(session)["state"] == "inert"
        assert skips(session) == 0
        assert session.held_bytes() == 0
    assert torch.equal(ours, plain(num_inference_steps=6))
    assert seen.count == 6 * len(BRANCHES) * LAYERS["p1"]
    assert before.diff(fingerprint(pipe, contents=True), run_state=False) == []


@every
def test_requests_back_to_back_are_as_in_fresh_sessions(host, pipe, plain, cache):
    calls = [
        models.call(num_inference_steps=6),
        models.call(seed=4, num_inference_steps=9, height=48, num_frames=5),
    ]
    before = fingerprint(pipe, contents=True)
    with host.session(pipe, REQUESTS[cache]) as session:
        together = []
        for arguments in (*calls, *calls):
            together.append(session.pipe(**models.fresh(arguments)).frames)
            assert skips(session) > 0
            assert session.held_bytes() == 0
    for arguments, one, two in zip(calls, together[:2], together[2:], strict=True):
        with host.session(pipe, REQUESTS[cache]) as session:
            alone = session.pipe(**models.fresh(arguments)).frames
        assert torch.equal(one, alone) and torch.equal(two, alone)
    assert not torch.equal(together[0], plain(num_inference_steps=6))
    assert torch.equal(pipe(**models.call(num_inference_steps=6)).frames, plain(num_inference_steps=6))
    assert before.diff(fingerprint(pipe, contents=True), run_state=False) == []


@every
def test_what_it_kept_dies_with_the_run(host, pipe, cache):
    """Also after an exception, whose traceback holds the frames of the pipeline and not the cache's tensors."""
    seen = {}

    def look(pipe, index, timestep, values):
        if index == 2:
            tensors = [
                t for technique in session._opened.techniques.values() for t in technique.held_tensors()
            ]
            seen["held"] = [weakref.ref(tensor) for tensor in tensors]
            seen["bytes"] = session.held_bytes()
            if seen.get("raise"):
                raise RuntimeError("cancelled")
        return values

    with host.session(pipe, REQUESTS[cache]) as session:
        session.pipe(**models.call(num_inference_steps=6), callback_on_step_end=look)
        gc.collect()
        assert seen["bytes"] > 0 and seen["held"]
        assert [ref() for ref in seen["held"] if ref() is not None] == []
        seen["raise"] = True
        with pytest.raises(RuntimeError, match="cancelled"):
            session.pipe(**models.call(num_inference_steps=6), callback_on_step_end=look)
        gc.collect()
        assert seen["held"] and [ref() for ref in seen["held"] if ref() is not None] == []


DUE = {
    **{name: changed(name, **REQUESTS[name]["feature_cache"]) for name in OF_A_TRANSFORMER},
    **{
        name: {key: {**options, "max_skip": 2}}
        for name in WITH_A_LIMIT
        for key, options in FOUR_FIRST[name].items()
    },
}
"""Requests of which every few steps one is due to be computed."""


def block_calls(model, index, fails=False):
    """How many blocks ran in one call of a driver that gives no timesteps beforehand. It ``fails`` in the last one."""

    def fail(*_):
        raise RuntimeError("the call failed")

    last = model.blocks[-1].attn1.to_q.register_forward_hook(fail) if fails else None
    context = model.cache_context("cond", step_index=index, num_inference_steps=len(LONG))
    try:
        with BlockCalls(model) as seen, context:
            model(**models.w_inputs(seed=3 + index, timestep=LONG[index]))
    finally:
        if last is not None:
            last.remove()
    return seen.count


@each
def test_a_call_that_failed_is_followed_by_one_that_is_computed(host, base, cache):
    """A driver may catch the error and go on, or try again, within the run: what was due is not done."""
    with host.session(base, DUE[cache]) as session:
        with session.run(num_inference_steps=len(LONG)):
            ran = [block_calls(session.model, index) for index in range(len(LONG))]
        due = [index for index in range(5, 16) if ran[index] == LAYERS["w"] > ran[index + 1]]
        assert due, ran
        for again in (0, 1):
            with session.run(num_inference_steps=len(LONG)):
                for index in range(due[0]):
                    block_calls(session.model, index)
                with pytest.raises(RuntimeError, match="the call failed"):
                    block_calls(session.model, due[0], fails=True)
                assert session.held_bytes() == 0
                assert block_calls(session.model, due[0] + 1 - again) == LAYERS["w"]


NOT_CALLED = {("blocktaylorseer", "predict"), ("dynamicblock", "predict"), ("dynamicblock", "commit")}
"""Per-block caches predict and keep block by block."""


@each
@pytest.mark.parametrize("method", ["decide", "predict", "commit"])
def test_what_raises_in_a_cache_itself_leaves_nothing(host, base, cache, method, monkeypatch):
    """Out of memory in a comparison or a prediction, for one."""
    with host.session(base, REQUESTS[cache]) as session, session.run(timesteps=STEPS):
        for index, timestep in enumerate(STEPS[:2]):
            step(session.model, index, timestep)
        (technique,) = session._opened.techniques.values()
        states = {type(state) for state in technique._states.values()}
        assert session.held_bytes() > 0 and states

        def fail(*_):
            raise torch.OutOfMemoryError("no memory is left")

        for state in states:
            monkeypatch.setattr(state, method, fail)
        try:
            for index, timestep in enumerate(STEPS[2:], 2):
                step(session.model, index, timestep)
        except torch.OutOfMemoryError:
            assert session.held_bytes() == 0
        else:
            assert (cache, method) in NOT_CALLED


@pytest.mark.parametrize(
    ("cache", "wanted", "opened"),
    [
        *((cache, "weight", False) for cache in OF_A_TRANSFORMER),
        *(
            (cache, wanted, opened)
            for cache in ("taylorseer", "firstblock", "easycache")
            for wanted, opened in (("hidden_states", True), ("encoder_hidden_states", False))
        ),
    ],
)
def test_no_gradient_is_cut_off(host, cache, wanted, opened):
    """Weights as a checkpoint's are loaded, in evaluation mode, or a latent or a text that is to be changed, in a run
    that was begun with gradients or without: what a backward pass needs is computed, and told.
    """
    model = models.w().requires_grad_(False)
    if wanted == "weight":
        model.blocks[-1].ffn.net[2].requires_grad_(True)

    def gradient(model):
        inputs = models.w_inputs(seed=3)
        to = model.blocks[-1].ffn.net[2].weight if wanted == "weight" else inputs[wanted].requires_grad_()
        with torch.enable_grad():
            for timestep in STEPS[:-1]:
                with model.cache_context("cond"):
                    output = model(**{**inputs, "timestep": models.w_inputs(timestep=timestep)["timestep"]})[
                        0
                    ]
            (found,) = torch.autograd.grad(output.square().mean(), [to])
        return output.detach(), found

    plain = gradient(model)
    with host.session(model, REQUESTS[cache]) as session:
        with torch.set_grad_enabled(opened), session.run(timesteps=STEPS):
            ours = gradient(session.model)
        assert skips(session) == 0
        assert "gradients are recorded" in json.dumps(session.report["fallbacks"])
        with torch.enable_grad(), session.run(timesteps=STEPS), torch.no_grad():
            drive(session.model, STEPS)
        assert skips(session) > 0
    assert same(ours, plain)


@every
def test_guidance_off(host, pipe, cache):
    with host.session(pipe, REQUESTS[cache]) as session:
        if cache == "cfg-gate":
            with pytest.raises(Refused, match="WF-K060"):
                session.pipe(**models.call(num_inference_steps=6, guidance_scale=1.0))
            return
        frames = session.pipe(**models.call(num_inference_steps=6, guidance_scale=1.0)).frames
        assert set(rows(session)) == {"transformer/cond"}
        assert skips(session) > 0
        assert session.report["steps"]["calls"] == {"transformer/cond": 6}
    assert frames.isfinite().all()


@pytest.mark.parametrize(
    ("cache", "guidance"), [*((name, 3.0) for name in REQUESTS), *((name, 1.0) for name in OF_A_TRANSFORMER)]
)
def test_two_experts_each_start_computed(host, experts, cache, guidance):
    """The switch is at step 3 of 10."""
    request = {"cfg_gate_step": 0.2} if cache == "cfg-gate" else REQUESTS[cache]
    if cache == "magcache":
        request = changed(cache, ratios=[1.0, *[0.99] * 9], high_noise_steps=3)
    arguments = models.call(num_inference_steps=10, guidance_scale=guidance)
    with host.session(experts, request) as session:
        with BlockCalls(session.pipe.transformer) as high, BlockCalls(session.pipe.transformer_2) as low:
            first = session.pipe(**models.fresh(arguments)).frames
        found = rows(session)
        assert session.held_bytes() == 0
        again = session.pipe(**models.fresh(arguments)).frames
    branches = BRANCHES if guidance > 1 else BRANCHES[:1]
    assert set(found) == {f"{name}/{b}" for name in ("transformer", "transformer_2") for b in branches}
    for branch in branches:
        assert found[f"transformer/{branch}"]["computed"][0] == 0
        assert found[f"transformer_2/{branch}"]["computed"][0] == 3
    assert found[f"transformer_2/{branches[-1]}"]["skipped"]
    assert high.count <= 3 * len(branches) * 3 and low.count < 7 * len(branches) * 3
    assert torch.equal(first, again) and first.isfinite().all()


@pytest.fixture(scope="module")
def vace():
    return seeded(
        WanVACETransformer3DModel,
        **{**models.W_CONFIG, "in_channels": 16, "out_channels": 16, "vace_layers": [0, 2]},
    )


def vace_inputs(control):
    g = torch.Generator().manual_seed(control)
    return {
        **models.w_inputs(),
        "hidden_states": torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(2)),
        "control_hidden_states": torch.randn(1, 96, 3, 8, 8, generator=g) * 3,
    }


@each
def test_vace_hints_are_not_added_twice(host, vace, cache):
    """The same call at every step: what is skipped must give what was computed, with the hints in it once."""
    plain = vace(**vace_inputs(4))[0]
    with host.session(vace, REQUESTS[cache]) as session:
        timesteps = [500.0 - 1e-9 * index for index in range(6)]
        with session.run(timesteps=timesteps), BlockCalls(session.model) as seen:
            outputs = []
            for _ in timesteps:
                with session.model.cache_context("cond"):
                    outputs.append(session.model(**vace_inputs(4))[0])
        assert skips(session) > 0
    assert seen.count < 6 * 4
    for output in outputs:
        assert float((output - plain).abs().max()) < 1e-5
    other = vace(**vace_inputs(5))[0]
    assert float((other - plain).abs().max()) > 0.05, "the hints matter in this model"


@pytest.fixture(scope="module", params=["vace", "ti2v", "i2v"])
def recipe(request):
    """Pipelines of two blocks, with six steps: control blocks, a timestep per token, image tokens."""
    pipe, arguments = models.RECIPES[request.param]()
    return pipe, {**arguments, "num_inference_steps": 6, "output_type": "latent"}


@every
def test_a_forced_hit_in_every_kind_of_pipeline(host, recipe, cache):
    pipe, arguments = recipe
    request = changed(cache, tail_blocks=0) if cache == "dualblock" else REQUESTS[cache]
    before = fingerprint(pipe, contents=True)
    with host.session(pipe, request) as session:
        first = session.pipe(**models.fresh(arguments)).frames
        assert claim(session)["state"] == "effective"
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, first)
    assert first.isfinite().all()
    assert before.diff(fingerprint(pipe, contents=True), run_state=False) == []


@pytest.fixture(scope="module")
def half():
    return models.to(models.p1(), torch.bfloat16)


@every
def test_bf16(host, half, cache):
    arguments = models.cast(models.call(num_inference_steps=6), torch.bfloat16)
    with torch.no_grad():
        plain = half(**models.fresh(arguments)).frames
    with host.session(half, REQUESTS[cache]) as session:
        ours = session.pipe(**models.fresh(arguments)).frames
        assert skips(session) > 0
    with host.session(half, NEVER[cache]) as session:
        never = session.pipe(**models.fresh(arguments)).frames
    assert ours.dtype == plain.dtype and ours.isfinite().all()
    assert torch.equal(never, plain)
