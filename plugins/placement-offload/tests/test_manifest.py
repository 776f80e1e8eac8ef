from __future__ import annotations

from pathlib import Path
from typing import Any

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_placement_offload" / "wf-plugin.toml")

BLOCKS, COMPONENT, DISK = MANIFEST.features


def unmet(feature: Any, facts: dict[str, Any], **options: Any) -> set[str]:
    known = Facts.of(facts, "test")
    return {item.code for item in feature.conditions if item.judge(known, options).state == "unmet"}


def test_the_modes_are_declared_and_cannot_be_activated() -> None:
    values = {value: f.name for f in MANIFEST.features for select in f.selects for value in select.values}
    names = ("async-block", "block", "cpu", "layer")
    assert values == {
        **dict.fromkeys(names, "offload-async-block"),
        "component": "offload-component",
        "disk": "offload-disk",
    }
    assert {feature.state for feature in MANIFEST.features} == {"unavailable: not implemented"}


def test_each_mode_says_what_it_moves() -> None:
    words = [{rule.effect.name for rule in feature.effects} for feature in MANIFEST.features]
    assert [word & {"moves-parameters", "moves-modules", "reloads-weights"} for word in words] == [
        {"moves-parameters"},
        {"moves-modules"},
        {"reloads-weights"},
    ]


def test_fixed_buffers_ask_more_of_the_model() -> None:
    facts = {
        "model.layer_containers": ["blocks"],
        "model.shares_storage": True,
        "model.layers_in_order": False,
        "run.grad_enabled": True,
    }
    assert unmet(BLOCKS, facts, reuse_buffers=False) == set()
    assert unmet(BLOCKS, facts, reuse_buffers=True) == {"WF-L002", "WF-L003", "WF-L004"}


def test_a_family_declares_what_can_be_moved() -> None:
    assert unmet(BLOCKS, {"model.layer_containers": []}, reuse_buffers=False) == {"WF-L001"}
    assert (
        unmet(COMPONENT, {"model.module_map": None}) == unmet(DISK, {"model.module_map": None}) == {"WF-L005"}
    )
    assert unmet(DISK, {"model.module_map": ["transformer"]}) == set()
