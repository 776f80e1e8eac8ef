from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_quant_fp8" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


def effects(**options: object) -> set[str]:
    feature = MANIFEST.feature("fp8")
    assert feature is not None
    known = Facts.of({}, "test")
    return {
        str(r.effect)
        for r in feature.effects
        if r.when is None or r.when.judge(known, options).state == "met"
    }


def test_it_starts_at_ada() -> None:
    assert unmet("fp8", {"device.type": "cuda", "device.sm": 89}) == []
    assert unmet("fp8", {"device.type": "cuda", "device.sm": 86}) == ["WF-Q002"]
    assert unmet("fp8", {"device.type": "cpu", "device.sm": None})[0] == "WF-Q001"


def test_one_scale_per_tensor_depends_on_the_tokens_and_cannot_be_packed() -> None:
    assert {"replaces-linear", "weights-as-buffers"} <= effects(scaling="rowwise")
    assert effects(scaling="tensorwise") - effects(scaling="rowwise") == {
        "tensor-wide-scale",
        "no-packed-form",
    }


def test_it_is_experimental() -> None:
    feature = MANIFEST.feature("fp8")
    assert feature is not None
    assert feature.experimental
