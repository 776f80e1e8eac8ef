from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wf_core.api import BadInput, Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_parallel_cfg" / "wf-plugin.toml")

SPLIT = MANIFEST.features[0]


def unmet(facts: dict[str, Any]) -> set[str]:
    known = Facts.of({"process.group_initialised": True, **facts}, "test")
    return {item.code for item in SPLIT.conditions if item.judge(known, {"degree": 2}).state == "unmet"}


def test_it_is_declared_and_cannot_be_activated() -> None:
    assert (SPLIT.name, SPLIT.state) == ("cfg-parallel", "unavailable: not implemented")
    assert SPLIT.families == ("wan", "cosmos")
    assert (MANIFEST.switches[0].name, MANIFEST.switches[0].off) == ("cfg_parallel", (1, False))


def test_degrees_are_one_and_two() -> None:
    degree = SPLIT.option("degree")
    assert degree is not None
    assert degree.convert("2", "cfg_parallel") == 2
    with pytest.raises(BadInput, match="one of 1, 2"):
        degree.convert(3, "cfg_parallel")


@pytest.mark.parametrize(
    ("facts", "codes"),
    [
        ({"model.guidance_form": "two-branch", "run.branches": 2}, set()),
        ({"model.guidance_form": "embedded", "run.branches": 1}, {"WF-X003", "WF-X006"}),
        ({"model.guidance_form": "guider", "run.branches": 2}, {"WF-X004"}),
        ({"model.guidance_form": "two-branch", "run.branches": 1}, {"WF-X006"}),
        ({"model.guidance_form": "two-branch", "process.group_initialised": False}, {"WF-X005"}),
    ],
)
def test_both_ranks_need_a_branch(facts: dict[str, Any], codes: set[str]) -> None:
    assert unmet(facts) == codes
