from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_quant_int8" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


def test_it_runs_on_a_cpu_and_from_ampere_on() -> None:
    assert unmet("int8", {"device.type": "cpu", "device.sm": None}) == []
    assert unmet("int8", {"device.type": "cuda", "device.sm": 80}) == []
    assert unmet("int8", {"device.type": "cuda", "device.sm": 75}) == ["WF-Q021"]


def test_all_layers_only_when_asked_for() -> None:
    feature = MANIFEST.feature("int8")
    assert feature is not None
    full = feature.option("full")
    assert full is not None
    assert full.default is False


def test_projections_can_be_packed() -> None:
    feature = MANIFEST.feature("int8")
    assert feature is not None
    effects = {str(rule.effect) for rule in feature.effects}
    assert "no-packed-form" not in effects
    assert {"replaces-linear", "weights-as-buffers"} <= effects
