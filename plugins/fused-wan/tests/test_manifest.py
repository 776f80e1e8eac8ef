"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_fused_wan"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, facts, **options):
    """The codes of the conditions of a feature that these facts do not meet."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(facts, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


def effects(manifest, name, **options):
    """The effects that a feature has with these options."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    rules = feature.effects
    return {str(r.effect) for r in rules if r.when is None or r.when.judge(Facts(), given).state == "met"}


def test_switches(manifest):
    assert {switch.name: (switch.feature, switch.form) for switch in manifest.switches} == {
        "fuse_qkv": ("fuse-qkv", "flag"),
        "qkv_strategy": ("fuse-qkv", "option"),
        "qkv_split_threshold": ("fuse-qkv", "option"),
        "fused_rope": ("fused-rope", "flag"),
        "rope_precision": ("fused-rope", "option"),
        "fused_modulation": ("fused-modulation", "flag"),
        "fused_gelu": ("fused-gelu", "flag"),
        "static_cross_kv": ("static-cross-kv", "flag"),
        "inplace_residual": ("inplace-residual", "flag"),
    }


@pytest.mark.parametrize(("strategy", "packs"), [("auto", True), ("packed", True), ("split", False)])
def test_only_split_leaves_projections_unpacked(manifest, strategy, packs):
    assert ("packs-projections" in effects(manifest, "fuse-qkv", strategy=strategy)) == packs


def test_defaults(manifest):
    assert manifest.feature("fuse-qkv").option("split_threshold").default == 8192
    assert manifest.feature("fused-rope").option("precision").choices == ("fp32", "fp64")


@pytest.mark.parametrize(
    ("name", "seams"),
    [
        ("fuse-qkv", ("qkv",)),
        ("static-cross-kv", ("denoiser", "linear")),
        ("inplace-residual", ("gated_residual",)),
        ("fused-gelu", ("feed_forward",)),
    ],
)
def test_where_they_stand(manifest, name, seams):
    feature = manifest.feature(name)
    assert feature.seams == seams and feature.state == ""
    assert "inference-only" in effects(manifest, name)


def test_packed_products_are_bounded_in_both_dtypes(manifest):
    bounds = manifest.feature("fuse-qkv").bounds
    assert {(bound.measure, bound.dtype): bound.value for bound in bounds} == {
        ("relative-l2", "float32"): 1e-6,
        ("relative-l2", "bfloat16"): 1e-2,
    }


def test_text_keys_and_values_outlive_a_call(manifest):
    feature = manifest.feature("static-cross-kv")
    assert "holds-request-tensors@attention" in effects(manifest, "static-cross-kv")
    assert feature.tier == "exact" and feature.families == ("wan", "cosmos")


@pytest.mark.parametrize(("enabled", "codes"), [(True, ["WF-U001"]), (False, [])])
def test_nothing_is_added_in_place_under_a_gradient(manifest, enabled, codes):
    assert unmet(manifest, "inplace-residual", {"run.grad_enabled": enabled}) == codes


HOPPER = {"device.type": "cuda", "device.sm": 90, "package.triton": "3.6.0"}


@pytest.mark.parametrize("name", ["fused-rope", "fused-modulation"])
@pytest.mark.parametrize(
    ("facts", "codes"),
    [
        ({}, []),
        ({"device.type": "cpu"}, ["WF-U010"]),
        ({"device.sm": 75}, ["WF-U011"]),
        ({"package.triton": None}, ["WF-U012"]),
    ],
)
def test_kernels_run_on_cuda_devices_from_sm80_on_with_triton(manifest, name, facts, codes):
    assert unmet(manifest, name, HOPPER | facts) == codes


@pytest.mark.parametrize(
    ("facts", "codes"),
    [
        ({}, []),
        ({"model.dtype": "float16"}, []),
        ({"device.type": "cpu"}, ["WF-U010"]),
        ({"model.dtype": "float32"}, ["WF-U013"]),
    ],
)
def test_the_fused_product_takes_half_precision_on_cuda_devices(manifest, facts, codes):
    assert unmet(manifest, "fused-gelu", HOPPER | {"model.dtype": "bfloat16"} | facts) == codes


@pytest.mark.parametrize(("family", "codes"), [("wan", []), ("hunyuan", []), ("cosmos", ["WF-U014"])])
def test_the_gelu_of_cosmos_is_not_that_of_the_epilogue(manifest, family, codes):
    assert (
        unmet(manifest, "fused-gelu", HOPPER | {"model.dtype": "bfloat16", "model.family": family}) == codes
    )
    assert manifest.feature("fused-gelu").supports(family), "Cosmos is refused by the reason alone"


def test_norms_and_residuals_of_all_families(manifest):
    """HunyuanVideo has no rows that tokens share."""
    for name in ("fused-modulation", "inplace-residual"):
        assert set(manifest.feature(name).families) == {"wan", "cosmos", "hunyuan"}
    assert manifest.feature("fused-modulation").optional_seams == ("time_embedding",)


def test_residuals_in_place_are_outside_the_fused_ones(manifest):
    assert manifest.feature("inplace-residual").before == ("fused-modulation",)


@pytest.mark.parametrize(
    ("known", "waits"),
    [
        ({"model.family": "wan", "model.expand_timesteps": True}, True),
        ({"model.family": "wan", "model.expand_timesteps": False}, False),
        ({"model.family": "cosmos"}, False),  # nothing looks at the timesteps of frames
    ],
)
def test_the_host_waits_once_for_timesteps_of_tokens(manifest, known, waits):
    facts = Facts.of(known, "test")
    rules = manifest.feature("fused-modulation").effects
    found = {
        str(rule.effect) for rule in rules if rule.when is None or rule.when.judge(facts, {}).state != "unmet"
    }
    assert ("host-sync@time_embedding" in found) == waits
