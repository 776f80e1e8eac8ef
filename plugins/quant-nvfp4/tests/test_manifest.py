from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_quant_nvfp4" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


def device(sm: int, cuda: str = "13.0") -> dict:
    return {"device.type": "cuda", "device.sm": sm, "device.cuda": cuda}


def test_it_needs_blackwell() -> None:
    assert [sm for sm in (80, 89, 90, 100, 103, 120, 121) if not unmet("nvfp4", device(sm))] == [
        100,
        103,
        120,
        121,
    ]
    assert unmet("nvfp4", device(90)) == ["WF-Q012"]


def test_it_needs_a_cuda_that_knows_blackwell() -> None:
    assert unmet("nvfp4", device(120, "12.6")) == ["WF-Q013"]
    assert unmet("nvfp4", device(120, "12.10")) == []


def test_its_weights_are_buffers_in_layers_of_its_own() -> None:
    feature = MANIFEST.feature("nvfp4")
    assert feature is not None
    assert {"replaces-linear", "weights-as-buffers"} <= {str(rule.effect) for rule in feature.effects}
