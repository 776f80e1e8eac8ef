"""TeaCache's reference vectors through a real session: timesteps are searched whose distances are the vector's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from support import models
from support.counting import BlockCalls
from wf_core import Refused
from wf_core.model.identity import Step

HELPER = Path(__file__).parents[1] / "plugins/lib-teacache/tests/teacache_vectors.py"
spec = importlib.util.spec_from_file_location("teacache_vectors", HELPER)
vectors = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vectors)


@pytest.fixture(scope="module")
def base():
    return models.w()


def request_of(row, preset, signal):
    return {
        "feature_cache": {
            "algorithm": "teacache",
            "coefficients": list(vectors.coefficients(preset)),
            "threshold": row["thresh"],
            "signal": signal,
            "first": row["retain_first"],
            "last": row["retain_last"],
        }
    }


def timesteps_for(host, base, distances, signal):
    family = host.family("wan")
    return vectors.timesteps_for(distances, lambda steps: family.modulation(base, steps)[signal])


def run_vector(host, base, row, preset, *, static):
    """The steps at which blocks really ran, counted on the model; and the report's own account."""
    signal = "e0" if preset.endswith(".e0") else "e"
    timesteps = timesteps_for(host, base, row["d"], signal)
    ran = []
    known = {"timesteps": timesteps} if static else {"num_inference_steps": len(timesteps)}
    with host.session(base, request_of(row, preset, signal)) as session:
        with session.run(**known):
            for index, timestep in enumerate(timesteps):
                with BlockCalls(session.model) as seen, session.model.cache_context("cond"):
                    session.model(**models.w_inputs(seed=index, timestep=timestep))
                if seen.count:
                    ran.append(index)
        return ran, session.report["steps"]["caches"]["teacache"]["branches"]["transformer/cond"]


@pytest.mark.parametrize("static", [True, False], ids=["static", "live"])
@pytest.mark.parametrize("name", vectors.SCHEDULES)
def test_schedules(host, base, name, static):
    vector = vectors.vector(name)
    row = vector["inputs"]
    ran, account = run_vector(host, base, row, row["preset"], static=static)
    assert ran == vector["expected"]["compute_steps"]
    assert account["computed"] == ran


@pytest.mark.parametrize("preset", sorted(vectors.synthetic()))
def test_full_length_schedules(host, base, preset):
    row = vectors.synthetic()[preset]
    ran, account = run_vector(host, base, row, preset, static=True)
    assert ran == row["compute_steps"]
    assert sorted(account["computed"] + account["skipped"]) == list(range(row["N"]))


def test_a_schedule_outside_the_fitted_domain_is_refused_before_any_model_call(host, base):
    vector = vectors.vector("tea.domain.failure")["inputs"]
    timesteps = timesteps_for(host, base, vector["d"], "e0")
    with host.session(base, request_of(vector, vector["preset"], "e0")) as session:
        with BlockCalls(session.model) as seen, pytest.raises(Refused, match=r"step \d+.*0\.2"):
            with session.run(timesteps=timesteps):
                session.model(**models.w_inputs(timestep=timesteps[0]))
    assert seen.count == 0


def test_branches_may_disagree_where_the_signal_does(host, base):
    """tea.two_branch: each branch is driven at timesteps of its own, so that its distances are the vector's."""
    vector = vectors.vector("tea.two_branch")
    row = {**vector["inputs"], "retain_first": 1, "retain_last": 1}
    branches = {"cond": "d_cond", "uncond": "d_uncond"}
    timesteps = {b: timesteps_for(host, base, row[key], "e") for b, key in branches.items()}
    ran = {branch: [] for branch in branches}
    with host.session(base, request_of(row, row["preset"], "e")) as session:
        with session.run(num_inference_steps=6):
            for index in range(6):
                for branch in branches:
                    with BlockCalls(session.model) as seen, session.model.cache_context(branch):
                        session.model(**models.w_inputs(seed=index, timestep=timesteps[branch][index]))
                    if seen.count:
                        ran[branch].append(index)
    assert ran["cond"] == vector["expected"]["cond_compute"]
    assert ran["uncond"] == vector["expected"]["uncond_compute"]


@pytest.mark.parametrize("static", [True, False], ids=["static", "live"])
@pytest.mark.parametrize("force", [False, True], ids=["free", "forced"])
def test_a_step_that_the_host_forces_starts_the_sum_anew(host, base, force, static):
    """tea.force: from step 2 on the latents have another size, so that nothing that was kept fits that step."""
    vector = vectors.vector("tea.force")
    row = {**vector["inputs"], "retain_first": 1, "retain_last": 1}
    (forced,) = row["forced"]
    timesteps = timesteps_for(host, base, row["d"], "e")
    known = {"timesteps": timesteps} if static else {"num_inference_steps": len(timesteps)}
    ran = []
    with host.session(base, request_of(row, row["preset"], "e")) as session:
        with session.run(**known):
            for index, timestep in enumerate(timesteps):
                height = 12 if force and index >= forced else 8
                with BlockCalls(session.model) as seen, session.model.cache_context("cond"):
                    session.model(**models.w_inputs(seed=index, height=height, timestep=timestep))
                if seen.count:
                    ran.append(index)
        account = session.report["steps"]["caches"]["teacache"]["branches"]["transformer/cond"]
    assert ran == vector["expected"]["compute_with_force" if force else "compute_without_force"]
    assert account["computed"] == ran
    assert (account["reasons"][str(forced)] == "geometry-changed") == force


@pytest.mark.parametrize("static", [True, False], ids=["static", "live"])
@pytest.mark.parametrize(("mode", "signal"), [("no_ret", "e"), ("ret", "e0")])
def test_retained_steps_are_counted_in_solver_steps_and_not_in_calls(host, base, mode, signal, static):
    """tea.counter: twelve steps of two branches; nothing but the retained steps reaches the threshold."""
    vector = vectors.vector("tea.counter")
    total, branches = vector["inputs"]["N"], ("cond", "uncond")
    timesteps = tuple(float(t) for t in range(990, 990 - 10 * total, -10))
    algorithm = {"algorithm": "teacache", "coefficients": [1.0, 0.0], "signal": signal, "threshold": 100.0}
    known = {"timesteps": timesteps} if static else {"num_inference_steps": total}
    calls = []
    with host.session(base, {"feature_cache": algorithm}) as session:
        with session.run(**known, branches=2):
            for index, timestep in enumerate(timesteps):
                for branch in branches:
                    with BlockCalls(session.model) as seen, session.model.cache_context(branch):
                        session.model(**models.w_inputs(seed=index, timestep=timestep))
                    calls.append(seen.count)
        accounts = session.report["steps"]["caches"]["teacache"]["branches"]
    assert len(calls) == 2 * total
    expected = vector["expected"]
    assert [number for number, count in enumerate(calls) if count] == expected[f"{mode}_forced_calls"]
    assert [accounts[f"transformer/{branch}"]["computed"] for branch in branches] == [
        expected[f"{mode}_forced_steps"]
    ] * 2


def test_a_skipped_step_adds_the_residual_of_the_last_computed_one(host, base):
    """tea.reuse, on the real stack: what enters the head is the input plus the kept residual."""
    timesteps = (900.0, 890.0, 100.0)
    request = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0}}
    seen: list[tuple[Step, torch.Tensor, torch.Tensor]] = []
    with host.session(base, request) as session:
        model = session.model
        patches = model.patch_embedding.register_forward_hook(lambda m, a, out: seen.append(out))
        heads = model.norm_out.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
        with session.run(timesteps=timesteps):
            for index, timestep in enumerate(timesteps):
                with model.cache_context("cond"):
                    model(**models.w_inputs(seed=index, timestep=timestep))
        patches.remove()
        heads.remove()
        assert session.report["steps"]["caches"]["teacache"]["branches"]["transformer/cond"]["skipped"] == [1]
    entered = [item.flatten(2).transpose(1, 2) for item in seen[0::2]]
    left = seen[1::2]
    assert torch.equal(left[1], entered[1] + (left[0] - entered[0]))
    assert not torch.equal(left[2], entered[2] + (left[0] - entered[0]))


def test_two_experts_keep_separate_state(host):
    pipe = models.p2()
    request = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0}}
    with host.session(pipe, request) as session:
        session.pipe(**models.call(num_inference_steps=10))
        branches = session.report["steps"]["caches"]["teacache"]["branches"]
    assert {key: row["computed"] for key, row in branches.items()} == {
        "transformer/cond": [0],
        "transformer/uncond": [0],
        "transformer_2/cond": [3, 9],
        "transformer_2/uncond": [3, 9],
    }


def test_a_stack_that_cannot_be_opened_is_refused_when_the_session_opens(host, base, monkeypatch):
    """An untested source of the stock forward: the reason is the family's, and nothing of the base is touched."""
    from wf_plugin_wan import source

    monkeypatch.setitem(source.TESTED, "WanTransformer3DModel", frozenset())
    request = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0]}}
    with pytest.raises(Refused, match=r"WF-S001.*untested diffusers version"):
        host.session(base, request)
    with host.session(base, {"attention_backend": "sdpa"}):
        pass


def test_only_a_driver_without_a_schedule_waits_for_the_device_and_ranks_agree_either_way(host, base):
    """A pipeline's call always has a schedule; a bare transformer may be driven without, which the plan says."""
    request = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0]}}
    effects = {}
    for name, model in (("pipeline", models.p1()), ("bare", base)):
        (feature,) = host.resolve(model, request).features
        effects[name] = set(map(str, feature.effects))
    assert effects["bare"] - effects["pipeline"] == {"host-sync@stack"}
    for found in effects.values():
        assert "rank-uniform-decision" in found
        assert "rank-local-decision" not in found


def test_without_a_preset_or_coefficients_it_is_refused(host, base):
    with pytest.raises(Refused, match="coefficients"):
        host.resolve(base, {"feature_cache": "teacache"})
