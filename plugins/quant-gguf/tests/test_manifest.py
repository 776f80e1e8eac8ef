from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_quant_gguf" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


INSTALLED = {"package.gguf": "0.19.0"}


def test_the_package_is_needed() -> None:
    assert unmet("gguf", {"package.gguf": None}) == ["WF-Q041"]
    assert unmet("gguf", {"package.gguf": "0.9.1"}) == ["WF-Q041"]
    assert unmet("gguf", INSTALLED) == []


def test_a_file_that_is_not_there_is_refused() -> None:
    assert unmet("gguf", {**INSTALLED, "file.gguf.path": False}, path="model.gguf") == ["WF-Q042"]
    assert unmet("gguf", {**INSTALLED, "file.gguf.path": True}, path="model.gguf") == []


def test_a_file_name_asks_for_it() -> None:
    feature = MANIFEST.feature("gguf")
    assert feature is not None
    assert [(s.values, s.suffix, s.suffix_option) for s in feature.selects] == [(("gguf",), ".gguf", "path")]
