from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_adapter_peft" / "wf-plugin.toml")

ADAPTER = MANIFEST.features[0]
FITS = {
    "package.peft": "0.21.2",
    "file.peft-adapter.path": True,
    "adapter.matches_base": True,
    "adapter.targets_present": True,
}


def test_it_is_declared_and_cannot_be_activated() -> None:
    assert (ADAPTER.name, ADAPTER.state) == ("peft-adapter", "unavailable: not implemented")
    assert [rule.effect.name for rule in ADAPTER.effects] == ["merges-weights"]
    assert {switch.name: switch.form for switch in MANIFEST.switches} == {
        "peft_adapter_path": "value",
        "adapter_scale": "option",
    }


def test_the_scale_is_one_unless_given() -> None:
    scale = ADAPTER.option("scale")
    assert scale is not None and scale.default == 1.0


@pytest.mark.parametrize(
    ("fact", "value", "code"),
    [
        ("package.peft", None, "WF-D001"),
        ("file.peft-adapter.path", False, "WF-D002"),
        ("adapter.matches_base", False, "WF-D003"),
        ("adapter.targets_present", False, "WF-D004"),
    ],
)
def test_an_adapter_must_fit_its_base(fact: str, value: Any, code: str) -> None:
    def unmet(facts: dict[str, Any]) -> set[str]:
        known = Facts.of(facts, "test")
        return {item.code for item in ADAPTER.conditions if item.judge(known, {}).state == "unmet"}

    assert unmet(FITS) == set()
    assert unmet({**FITS, fact: value}) == {code}
