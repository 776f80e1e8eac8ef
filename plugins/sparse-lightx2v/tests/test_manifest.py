from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_sparse_lightx2v" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.bind(MANIFEST.tables).judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


KINDS = {
    "dynamic_sparse",
    "sparge",
    "nbhd",
    "lightx2v_sla_mask",
    "flexblock",
    "lightx2v_spas_sage",
    "draft_attn",
    "radial_attn",
    "rainfusion_attn",
    "svg_attn",
    "svg2_attn",
    "lightx2v_svg_mask",
    "sage_attn2_k_int8_v_fp8",
}


def test_all_kinds_are_there_and_share_one_slot() -> None:
    assert {feature.name for feature in MANIFEST.features} == KINDS
    assert {feature.slot for feature in MANIFEST.features} == {"sparse-attention"}
    values = [value for f in MANIFEST.features for select in f.selects for value in select.values]
    assert set(values) == KINDS


def test_every_kind_is_kept_from_graphs_and_from_split_tokens() -> None:
    for feature in MANIFEST.features:
        effects = {str(rule.effect) for rule in feature.effects}
        assert {"host-state@attention", "token-local-decision"} <= effects, feature.name


def test_rainfusion_pairs_the_frames_after_the_first() -> None:
    grid = {"run.token_grid": [21, 30, 52]}
    assert unmet("rainfusion_attn", {**grid, "run.grid_frames": 21}) == []
    assert unmet("rainfusion_attn", {**grid, "run.grid_frames": 20}) == ["WF-Z047"]
    assert unmet("rainfusion_attn", {**grid, "run.grid_frames": 1}) == ["WF-Z047"]


def test_more_clusters_than_tokens_are_refused() -> None:
    assert unmet("svg2_attn", {"run.tokens": 32760}) == []
    assert unmet("svg2_attn", {"run.tokens": 900}) == ["WF-Z048"]


def test_a_library_is_asked_for_only_where_it_is_chosen() -> None:
    bare = {"device.sm": 120, "package.magi-attention": None}
    assert unmet("radial_attn", bare) == []
    assert unmet("radial_attn", bare, executor="magi_attention") == ["WF-Z043", "WF-Z044"]


def test_spas_sage_takes_the_kernel_of_the_architecture() -> None:
    packages = {"package.spas-sage-attn": "0.1.0", "package.sageattn3-sparse": "1.0.0", "model.head_dim": 128}
    for sm in (90, 120):
        assert unmet("lightx2v_spas_sage", {**packages, "device.sm": sm}) == []
    assert unmet("lightx2v_spas_sage", {**packages, "device.sm": 90}, operator="spas_sage3") == ["WF-Z050"]
    assert unmet("lightx2v_spas_sage", {**packages, "device.sm": 100}) == ["WF-Z050"]
    assert unmet("lightx2v_spas_sage", {**packages, "device.sm": 90, "package.spas-sage-attn": None}) == [
        "WF-Z051"
    ]


def test_quantized_keys_are_never_there_on_wan() -> None:
    assert unmet("sage_attn2_k_int8_v_fp8", {"model.family": "wan"}) == ["WF-Z059"]
