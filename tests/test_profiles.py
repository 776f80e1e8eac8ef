"""The profiles of a request: official keeps results comparable, training keeps gradients right."""

from __future__ import annotations

from typing import Any

import pytest

from wf_core import Host, Plan, Refused
from wf_core.manifests.declarations import FeatureDecl
from wf_core.values import thaw

MODEL = "wan2.1-t2v-1.3b"
PUBLISHED = {
    "num_inference_steps": 50,
    "guidance_scale": 5.0,
    "height": 480,
    "width": 832,
    "num_frames": 81,
}
OF_FAMILY = {"wan": MODEL, "hunyuan": "hunyuanvideo", "cosmos": "cosmos-predict2-2b-video2world"}
SAFE_IN_TRAINING = {"torch_dtype", "enable_tf32", "matmul_precision", "deterministic"}


@pytest.fixture(scope="module", name="features")
def _features(host: Host) -> list[FeatureDecl]:
    """Every feature with the smallest request for it."""
    found = [offer.feature for offer in host.catalog.features()]
    assert len(found) > 60
    assert not [feature.name for feature in found if not feature.example]
    return found


def example(feature: FeatureDecl) -> dict[str, Any]:
    return {key: thaw(value) for key, value in feature.example.items()}


def model_for(feature: FeatureDecl) -> str:
    """A model of the first family that the feature supports."""
    return next(model for family, model in OF_FAMILY.items() if feature.supports(family))


def judge(host: Host, request: dict[str, Any], run: dict[str, Any] | None = None, model: str = MODEL) -> Plan:
    return host.resolve(model, request, run=run, device="h200")


def codes(
    host: Host, request: dict[str, Any], run: dict[str, Any] | None = None, model: str = MODEL, **facts: Any
) -> set[str]:
    """The codes of the violations; none if the request is legal."""
    try:
        host.resolve(model, request, run=run, device="h200", facts=facts)
    except Refused as refused:
        return {violation.code for violation in refused.refusal.violations}
    return set()


# --- official -------------------------------------------------------------------------------------------------------


def test_the_publishers_numbers_are_legal(host: Host) -> None:
    plan = judge(host, {"profile": "official"}, PUBLISHED)
    assert plan.unknown() == ()
    assert plan.features == ()


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        ({"num_inference_steps": 30}, "WF-C062", ("profile", "num_inference_steps")),
        ({"guidance_scale": 6.0}, "WF-C063", ("profile", "guidance_scale")),
        ({"height": 720, "width": 1280}, "WF-C064", ("profile", "height", "width")),
        ({"height": 832, "width": 480}, "WF-C064", ("profile", "height", "width")),
        ({"num_frames": 49}, "WF-C065", ("profile", "num_frames")),
    ],
    ids=str,
)
def test_other_numbers_are_another_workload(
    host: Host, change: dict[str, Any], code: str, names: tuple[str, ...]
) -> None:
    run = {**PUBLISHED, **change}
    with pytest.raises(Refused) as refused:
        judge(host, {"profile": "official"}, run)
    [violation] = refused.value.refusal.violations
    assert violation.code == code
    assert {*names} <= {*violation.involves}
    assert str(refused.value.refusal.nearest) == "leave out profile"
    assert judge(host, {}, run).features == ()


def test_all_of_them_are_told_at_once(host: Host) -> None:
    other = {"num_inference_steps": 30, "guidance_scale": 6.0, "height": 720, "width": 1280, "num_frames": 49}
    assert codes(host, {"profile": "official"}, other) == {"WF-C062", "WF-C063", "WF-C064", "WF-C065"}


@pytest.mark.parametrize("size", [(480, 832), (720, 1280)])
def test_a_model_may_have_several_official_sizes(host: Host, size: tuple[int, int]) -> None:
    run = {**PUBLISHED, "height": size[0], "width": size[1]}
    assert (
        judge(host, {"profile": "official"}, run, "wan2.1-t2v-14b").host_keys_dict()["profile"] == "official"
    )


def test_what_is_not_given_stays_unknown_until_the_call(host: Host) -> None:
    plan = judge(host, {"profile": "official"})
    assert plan.unknown() == ("run.guidance_scale", "run.num_frames", "run.num_inference_steps", "run.size")


def test_what_the_publisher_does_not_say_stays_unknown(host: Host) -> None:
    plan = host.resolve("my-own-finetune", {"profile": "official"}, family="wan", run=PUBLISHED)
    assert {"model.official_steps", "model.official_sizes"} <= {*plan.unknown()}


def test_it_refuses_what_has_losses_or_is_experimental(host: Host, features: list[FeatureDecl]) -> None:
    for feature in features:
        found = codes(host, {"profile": "official", **example(feature)}, model=model_for(feature))
        assert ("WF-C060" in found) == (feature.tier == "approximate"), feature.name
        assert ("WF-C061" in found) == feature.experimental, feature.name


def test_it_refuses_what_is_untested(host: Host) -> None:
    request = {"cuda_graph": True, "cfg_parallel": 2}
    plan = host.resolve(MODEL, request, run=PUBLISHED, device="h200", world=2)
    assert [(warning.code, warning.level) for warning in plan.warnings] == [("WF-C021", "untested")]
    with pytest.raises(Refused) as refused:
        host.resolve(MODEL, {**request, "profile": "official"}, run=PUBLISHED, device="h200", world=2)
    assert [violation.code for violation in refused.value.refusal.violations] == ["WF-C021"]


# --- training -------------------------------------------------------------------------------------------------------


def test_training_refuses_every_switch_but_those_that_keep_gradients(
    host: Host, features: list[FeatureDecl]
) -> None:
    kept = set()
    for feature in features:
        request = {"profile": "training", **example(feature)}
        if "WF-C071" not in codes(host, request, model=model_for(feature)):
            kept |= {*feature.example}
    assert kept == SAFE_IN_TRAINING


def test_a_model_in_training_refuses_the_same_without_the_profile(
    host: Host, features: list[FeatureDecl]
) -> None:
    kept = set()
    for feature in features:
        found = codes(host, example(feature), model=model_for(feature), **{"model.training": True})
        if "WF-C070" not in found:
            kept |= {*feature.example}
    assert kept == SAFE_IN_TRAINING


def test_what_keeps_gradients_is_legal_in_training(host: Host, features: list[FeatureDecl]) -> None:
    every = {key: value for feature in features for key, value in example(feature).items()}
    safe = {key: every[key] for key in SAFE_IN_TRAINING}
    plan = host.resolve(MODEL, {"profile": "training", **safe}, device="h200", facts={"model.training": True})
    assert {planned.switch for planned in plan.features} == SAFE_IN_TRAINING
