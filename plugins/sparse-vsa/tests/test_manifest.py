from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_sparse_vsa" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


def test_a_checkpoint_without_the_gate_is_refused() -> None:
    assert unmet("vsa", {"model.modules_present": ["blocks", "attn1"]}) == ["WF-Z013"]
    assert unmet("vsa", {"model.modules_present": ["blocks", "to_gate_compress"]}) == []
    assert unmet("vsa", {}) == []


def test_only_the_two_tiles_of_the_kernels_are_taken() -> None:
    assert unmet("vsa", {}, block_tile=(4, 8, 8)) == []
    assert unmet("vsa", {}, block_tile=(2, 8, 8)) == ["WF-Z014"]


def test_the_gate_needs_the_input_of_the_branch() -> None:
    feature = MANIFEST.feature("vsa")
    assert feature is not None
    assert set(feature.seams) == {"branch", "attention"}
