"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_attention_sage"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, facts, **options):
    """The codes of the conditions of a feature that these facts do not meet."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(facts, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


CONSUMER_BLACKWELL = {
    "device.type": "cuda",
    "device.sm": 120,
    "device.cuda": "13.0",
    "package.sageattention": "2.2.0",
    "package.sageattn3": "1.0.0",
    "model.dtype": "bfloat16",
    "model.head_dim": 128,
    "run.tokens": 32760,
}


@pytest.mark.parametrize("name", ["sage1", "sage2", "sage3"])
def test_a_lossy_kernel_is_in_no_group_but_its_own(manifest, name):
    feature = manifest.feature(name)
    assert feature.tier == "approximate"
    assert [select.groups for select in feature.selects] == [("sage",)]


@pytest.mark.parametrize(
    ("sm", "served"),
    [
        (75, []),
        (80, ["sage1", "sage2"]),
        (87, ["sage1"]),
        (90, ["sage1", "sage2"]),
        (100, ["sage1"]),
        (120, ["sage1", "sage2", "sage3"]),
    ],
)
def test_architectures(manifest, sm, served):
    facts = CONSUMER_BLACKWELL | {"device.sm": sm}
    assert [
        feature.name for feature in manifest.features if not unmet(manifest, feature.name, facts)
    ] == served


def test_the_architecture_is_the_main_reason_even_where_the_package_is_missing(manifest):
    facts = Facts.of(CONSUMER_BLACKWELL | {"device.sm": 90, "package.sageattn3": None}, "test")
    verdicts = [
        condition.judge(facts, {"min_tokens": 4096}) for condition in manifest.feature("sage3").conditions
    ]
    first = next(verdict for verdict in verdicts if verdict.state == "unmet")
    assert "needs sm120" in first.reason and "sm90" in first.reason


def test_one_release_of_the_package_serves_1_and_not_2(manifest):
    facts = CONSUMER_BLACKWELL | {"package.sageattention": "1.0.6"}
    assert unmet(manifest, "sage1", facts) == []
    assert unmet(manifest, "sage2", facts) == ["WF-A042"]


def test_four_bits_need_many_tokens_and_a_late_cuda(manifest):
    assert unmet(manifest, "sage3", CONSUMER_BLACKWELL | {"run.tokens": 1280}) == ["WF-A046"]
    assert unmet(manifest, "sage3", CONSUMER_BLACKWELL | {"run.tokens": 1280}, min_tokens=1024) == []
    assert unmet(manifest, "sage3", CONSUMER_BLACKWELL | {"device.cuda": "12.6"}) == ["WF-A045"]


def test_no_capture(manifest):
    (rule,) = manifest.rules
    assert rule.pair[0] == "captures-graph"
    assert all(rule.pair[1] in {r.effect.name for r in feature.effects} for feature in manifest.features)
