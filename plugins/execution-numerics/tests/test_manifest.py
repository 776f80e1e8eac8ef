"""What the manifest promises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

PACKAGE = Path(__file__).parents[1] / "src" / "wf_plugin_execution_numerics"


@pytest.fixture(scope="module")
def manifest():
    return Manifest.load(PACKAGE / "wf-plugin.toml")


def unmet(manifest, name, facts, **options):
    """The codes of the conditions of a feature that these facts do not meet."""
    feature = manifest.feature(name)
    given = {option.name: option.default for option in feature.options} | options
    known = Facts.of(facts, "test")
    return [c.code for c in feature.conditions if c.judge(known, given, manifest.tables).state == "unmet"]


FLAGS = ["attention-policy", "tf32", "matmul-precision", "deterministic"]


def effects(manifest, name):
    return {rule.effect.name for rule in manifest.feature(name).effects}


def test_switches(manifest):
    assert {switch.name: (switch.form, switch.off) for switch in manifest.switches} == {
        "attention_policy": ("value", ("inherit",)),
        "enable_tf32": ("value", ("inherit",)),
        "matmul_precision": ("value", ("inherit",)),
        "deterministic": ("value", ("inherit",)),
        "torch_dtype": ("value", ()),
    }
    assert manifest.switches[-1].aliases == ("dit_weight_dtype",)
    assert not any(feature.state for feature in manifest.features)


def test_each_has_a_slot_of_its_own(manifest):
    slots = [feature.slot for feature in manifest.features]
    assert all(slots) and len(set(slots)) == len(slots)


@pytest.mark.parametrize("name", FLAGS)
def test_flags_belong_to_the_process(manifest, name):
    assert "process-global" in effects(manifest, name)


def test_what_stays_legal_in_training(manifest):
    safe = {
        feature.name for feature in manifest.features if "training-safe" in effects(manifest, feature.name)
    }
    assert safe == {"tf32", "matmul-precision", "deterministic", "torch-dtype"}


@pytest.mark.parametrize(
    "name", ["attention-policy", "tf32", "matmul-precision", "deterministic", "torch-dtype"]
)
def test_each_states_its_bound_on_the_cpu(manifest, name):
    [bound] = manifest.feature(name).bounds
    assert (bound.measure, bound.device, bound.dtype) == ("relative-l2", "cpu", "float32")
    assert "not measured yet" not in manifest.feature(name).tolerance


def test_medium_has_the_last_word_over_what_allowing_tf32_means(manifest):
    assert manifest.feature("matmul-precision").after == ("tf32",)


def test_a_cast_needs_to_know_what_stays_in_float32(manifest):
    assert unmet(manifest, "torch-dtype", {"model.kept_in_fp32": None}, dtype="bf16") == ["WF-E002"]
    assert unmet(manifest, "torch-dtype", {"model.kept_in_fp32": ["norm2"]}, dtype="bf16") == []


@pytest.mark.parametrize(("policy", "codes"), [("math", []), ("flash", []), ("cudnn", ["WF-E001"])])
def test_a_policy_names_a_kernel_of_the_device(manifest, policy, codes):
    assert unmet(manifest, "attention-policy", {"device.type": "cpu"}, policy=policy) == codes
    assert unmet(manifest, "attention-policy", {"device.type": "cuda"}, policy=policy) == []
