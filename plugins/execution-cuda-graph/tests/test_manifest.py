"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_execution_cuda_graph"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, facts, **options):
    """The codes of the conditions of a feature that these facts do not meet."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(facts, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


def test_it_captures_the_denoiser(manifest):
    (feature,) = manifest.features
    assert "captures-graph@denoiser" in {str(rule.effect) for rule in feature.effects}
    assert feature.stage == "graph" and feature.seams == ("denoiser",)
    assert feature.state.startswith("unavailable:")


def test_the_switch_is_a_flag(manifest):
    (switch,) = manifest.switches
    assert (switch.name, switch.form, switch.feature) == ("cuda_graph", "flag", "cuda-graph")


def test_one_eager_call_or_failed_capture_is_not_effective(manifest):
    evidence = {item.counter: item for item in manifest.feature("cuda-graph").evidence}
    assert evidence["replays"].at_least == 1
    assert evidence["eager_calls"].equals == evidence["capture_failed"].equals == 0


@pytest.mark.parametrize(("device", "codes"), [("cuda", []), ("cpu", ["WF-E040"])])
def test_it_needs_cuda(manifest, device, codes):
    assert unmet(manifest, "cuda-graph", {"device.type": device}) == codes
