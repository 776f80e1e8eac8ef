from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_sparse_sta" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


def test_both_tuned_grids_are_taken_and_others_are_not() -> None:
    assert unmet("sta", {"run.token_grid": [18, 48, 80]}) == []
    assert unmet("sta", {"run.token_grid": [36, 48, 48]}) == []
    assert unmet("sta", {"run.token_grid": [31, 22, 40]}) == ["WF-Z003"]
    assert unmet("sta", {"run.token_grid": [48, 48, 36]}) == ["WF-Z003"]


def test_an_unknown_grid_waits() -> None:
    assert unmet("sta", {}) == []


def test_it_is_lossy_and_asked_for_by_its_kind() -> None:
    feature = MANIFEST.feature("sta")
    assert feature is not None
    assert feature.tier == "approximate"
    assert [(s.switch, s.values) for s in feature.selects] == [("approximate_attention", ("sta",))]
