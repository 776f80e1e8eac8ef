from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_quant_int4" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


def test_it_runs_anywhere() -> None:
    assert unmet("int4", {"device.type": "cpu", "device.sm": None}) == []
    assert unmet("int4", {"device.type": "cuda", "device.sm": 70}) == []


def test_it_claims_storage_and_no_low_precision_product() -> None:
    feature = MANIFEST.feature("int4")
    assert feature is not None
    proofs = {item.counter for item in feature.evidence if item.proves}
    assert proofs == {"packed_weight_calls", "compressed_bytes"}


def test_its_weights_are_buffers_in_layers_of_its_own() -> None:
    feature = MANIFEST.feature("int4")
    assert feature is not None
    assert {"replaces-linear", "weights-as-buffers"} <= {str(rule.effect) for rule in feature.effects}
