from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_sparse_sla" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


H200 = {"device.type": "cuda", "device.sm": 90, "package.spas-sage-attn": "0.1.0", "model.head_dim": 128}


def test_a_dense_checkpoint_is_refused_by_both() -> None:
    dense = {**H200, "model.modules_present": ["blocks", "attn1"]}
    trained = {**H200, "model.modules_present": ["blocks", "attn1", "proj_l"]}
    for name in ("fastvideo_sla", "fastvideo_sagesla"):
        assert unmet(name, dense) == ["WF-Z035"]
        assert unmet(name, trained) == []


def test_the_architecture_comes_before_the_package() -> None:
    facts = {**H200, "device.sm": 120, "package.spas-sage-attn": None}
    assert unmet("fastvideo_sagesla", facts) == ["WF-Z033", "WF-Z034"]
    assert unmet("fastvideo_sla", facts) == []


def test_the_ambiguous_names_select_nothing() -> None:
    values = [value for f in MANIFEST.features for select in f.selects for value in select.values]
    assert values == ["fastvideo_sla", "fastvideo_sagesla"]
