from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_sparse_adaptive" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


def test_it_takes_any_grid_on_any_device() -> None:
    facts = {"run.token_grid": [31, 22, 40], "device.type": "cpu", "device.sm": None}
    assert unmet("adaptive", {**facts, "model.supports_approximate_attention": True}) == []


def test_a_model_that_hands_out_no_attention_is_refused() -> None:
    assert unmet("adaptive", {"model.supports_approximate_attention": False}) == ["WF-Z071"]


def test_triton_is_not_promised_on_the_cpu() -> None:
    assert unmet("adaptive", {"device.sm": None}, executor="triton") == ["WF-Z072"]
