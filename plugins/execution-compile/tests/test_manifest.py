"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_execution_compile"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, facts, **options):
    """The codes of the conditions of a feature that these facts do not meet."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(facts, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


def effects(manifest, name, **options):
    """The effects that a feature has with these options."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    rules = feature.effects
    return {str(r.effect) for r in rules if r.when is None or r.when.judge(Facts(), given).state == "met"}


def test_every_option_has_a_switch_that_needs_compile(manifest):
    forms = {switch.name: switch.form for switch in manifest.switches}
    assert forms.pop("compile") == "feature"
    names = [option.name for option in manifest.feature("compile").options]
    assert forms == dict.fromkeys([f"compile_{name}" for name in names], "option")
    assert manifest.switches[0].aliases == ("torch_compile",)
    assert manifest.feature("compile").state.startswith("unavailable:")


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, set()),
        ({"mode": "max-autotune-no-cudagraphs"}, set()),
        ({"mode": "reduce-overhead"}, {"nests-graph@block"}),
        ({"mode": "max-autotune"}, {"nests-graph@block"}),
        ({"mode": "default"}, {"custom-compile-options@block"}),
        ({"options": {"epilogue_fusion": True}}, {"custom-compile-options@block"}),
    ],
    ids=str,
)
def test_what_a_mode_does_to_a_graph_around_it(manifest, options, more):
    assert effects(manifest, "compile", **options) == {"compiles@block"} | more


def test_the_mode_beside_a_captured_graph(manifest):
    option = manifest.feature("compile").option("mode")
    assert option.default is None
    beside_a_graph = frozenset({"captures-graph"})
    assert option.default_beside(beside_a_graph) == "max-autotune-no-cudagraphs"
    assert option.default_beside(beside_a_graph, ("backend", "options")) is None
    assert option.default_beside(frozenset({"compiles"})) is None


def test_mode_and_options_exclude_each_other(manifest):
    facts = {"device.type": "cpu"}
    both = {"mode": "default", "options": {"epilogue_fusion": True}}
    assert unmet(manifest, "compile", facts, **both) == ["WF-E020"]
    assert all(unmet(manifest, "compile", facts, **{name: both[name]}) == [] for name in both)


def test_inductor_needs_triton_on_cuda(manifest):
    facts = {"device.type": "cuda", "package.triton": None}
    assert unmet(manifest, "compile", facts) == ["WF-E021"]
    assert unmet(manifest, "compile", facts, backend="aot_eager") == []
    assert unmet(manifest, "compile", facts | {"device.type": "cpu"}) == []
