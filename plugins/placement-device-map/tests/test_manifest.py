from __future__ import annotations

from pathlib import Path
from typing import Any

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(
    Path(__file__).parents[1] / "src" / "wf_plugin_placement_device_map" / "wf-plugin.toml"
)

MAP = MANIFEST.features[0]


def unmet(facts: dict[str, Any]) -> set[str]:
    known = Facts.of(facts, "test")
    return {
        item.code for item in MAP.conditions if item.judge(known, {"layout": "balanced"}).state == "unmet"
    }


def test_it_is_declared_and_cannot_be_activated() -> None:
    assert (MAP.name, MAP.state) == ("device-map", "unavailable: not implemented")
    assert {"places-layers"} <= {rule.effect.name for rule in MAP.effects}
    assert (MANIFEST.switches[0].name, MANIFEST.switches[0].off) == ("device_map", ("none",))


def test_it_needs_gpus_and_a_list_of_layers() -> None:
    layers = {"model.layer_containers": ["blocks"]}
    assert unmet({"device.type": "cuda", **layers}) == set()
    assert unmet({"device.type": "cpu", "device.count": 0, **layers}) == {"WF-L006"}
    assert unmet({"device.type": "cuda", "model.layer_containers": []}) == {"WF-L007"}


def test_weights_that_still_lie_on_the_cpu_can_be_spread() -> None:
    assert unmet({"device.type": "cpu", "device.count": 2, "model.layer_containers": ["blocks"]}) == set()
