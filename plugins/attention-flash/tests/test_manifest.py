"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_attention_flash"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, facts, **options):
    """The codes of the conditions of a feature that these facts do not meet."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(facts, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


HOPPER = {
    "device.type": "cuda",
    "device.sm": 90,
    "package.flash-attn": "2.8.1",
    "package.flash_attn_3": "3.0.0",
    "package.flash-attn-4": "4.0.0b36",
    "model.dtype": "bfloat16",
    "model.head_dim": 128,
}


def test_names_and_the_group_that_picks_the_best(manifest):
    selects = {feature.name: feature.selects[0] for feature in manifest.features}
    assert {name: select.values for name, select in selects.items()} == {
        "flash2": ("flash2", "flash_attn_2"),
        "flash3": ("flash3", "flash_attn_3"),
        "flash4": ("flash4",),
    }
    assert all(select.groups == ("flash", "auto") for select in selects.values())
    assert all(feature.tier == "equivalent" and feature.bounds for feature in manifest.features)


def test_the_order_is_the_measured_one_on_hopper(manifest):
    facts = Facts.of(HOPPER, "test")

    def order(feature):
        return next(
            r.order
            for r in feature.selects[0].ranks
            if r.when is None or r.when.judge(facts, {}).state == "met"
        )

    assert [feature.name for feature in sorted(manifest.features, key=order)] == [
        "flash4",
        "flash3",
        "flash2",
    ]


@pytest.mark.parametrize("name", ["flash2", "flash3", "flash4"])
def test_each_runs_on_hopper_in_16_bit(manifest, name):
    assert unmet(manifest, name, HOPPER) == []
    assert unmet(manifest, name, HOPPER | {"model.dtype": "float32"}) == ["WF-A023"]
    assert unmet(manifest, name, HOPPER | {"model.head_dim": 260}) == ["WF-A024"]
    assert unmet(manifest, name, {"device.type": "cpu"}) == ["WF-A020"]


@pytest.mark.parametrize(
    ("sm", "served"),
    [
        (75, []),
        (80, ["flash2"]),
        (89, ["flash2"]),
        (90, ["flash2", "flash3", "flash4"]),
        (100, ["flash2", "flash4"]),
        (120, ["flash2"]),
    ],
)
def test_architectures(manifest, sm, served):
    facts = HOPPER | {"device.sm": sm}
    assert [
        feature.name for feature in manifest.features if not unmet(manifest, feature.name, facts)
    ] == served


@pytest.mark.parametrize(
    ("name", "package", "version"),
    [
        ("flash2", "flash-attn", None),
        ("flash2", "flash-attn", "2.6.2"),
        ("flash3", "flash_attn_3", None),
        ("flash4", "flash-attn-4", None),
        ("flash4", "flash-attn-4", "4.0.0b8"),
    ],
)
def test_a_package_that_is_missing_or_too_old(manifest, name, package, version):
    assert unmet(manifest, name, HOPPER | {f"package.{package}": version}) == ["WF-A022"]


@pytest.mark.parametrize(
    ("sm", "size", "codes"), [(90, 192, []), (100, 192, ["WF-A024"]), (100, 256, []), (100, 128, [])]
)
def test_flash4_has_the_sizes_in_between_on_hopper_only(manifest, sm, size, codes):
    assert unmet(manifest, "flash4", HOPPER | {"device.sm": sm, "model.head_dim": size}) == codes
