from __future__ import annotations

from pathlib import Path
from typing import Any

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_parallel_ulysses" / "wf-plugin.toml")

DEGREE = MANIFEST.features[0]


def states(facts: dict[str, Any], degree: int) -> dict[str, str]:
    known = Facts.of(facts, "test")
    return {
        condition.code: condition.judge(known, {"degree": degree}).state for condition in DEGREE.conditions
    }


def test_it_is_declared_and_cannot_be_activated() -> None:
    assert (DEGREE.name, DEGREE.state) == ("ulysses", "unavailable: not implemented")
    switch = MANIFEST.switches[0]
    assert (switch.name, switch.aliases, switch.off) == ("sp_degree", ("sequence_parallel",), (1, False))


def test_its_ranks_are_the_degree_that_was_asked_for() -> None:
    effects = [str(rule.effect.bind({"degree": 4})) for rule in DEGREE.effects]
    assert {"occupies-ranks(4)", "splits-tokens", "collectives@attention"} <= set(effects)


def test_the_degree_divides_the_heads() -> None:
    facts = {"model.heads": 24, "process.group_initialised": True}
    assert states(facts, 4) == {"WF-X001": "met", "WF-X002": "met"}
    assert states(facts, 5)["WF-X001"] == "unmet"


def test_the_process_group_comes_first() -> None:
    assert states({"model.heads": 12, "process.group_initialised": False}, 2)["WF-X002"] == "unmet"
