"""The kernel that compares a block in one pass, in Triton's interpreter, in a process of its own; and on a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wf_plugin_cache_blocks import fused

SCRIPT = Path(__file__).with_name("interpreted_comparison.py")


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT)], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sums_are_those_of_float64_and_what_is_kept_is_the_sample(found):
    assert len(found["cases"]) == 2 * 3 * 3 * 3
    for case in found["cases"]:
        assert case["kept"], case
        assert all(case[name] < 1e-6 for name in ("moved", "size") if name in case), case
    assert {case["parts"] for case in found["cases"]} == {1, 2, 3, 5}


@pytest.mark.parametrize("reference", ["computed", "previous"])
def test_decisions_are_those_of_torchs_operators(found, reference):
    ours, torchs = found["runs"][reference]
    assert ours["fused"] > 0 and torchs["fused"] == 0
    assert ours["reasons"] == torchs["reasons"]
    assert {"below-threshold", "threshold"} <= set(ours["reasons"])
    for key in ("metrics", "output"):
        known = [number for number in torchs[key] if number is not None]
        assert [number for number in ours[key] if number is not None] == pytest.approx(known, rel=1e-6)


def test_the_cpu_is_served_by_torch():
    assert fused.why_not(torch.zeros(1, 2, 8)) == "the model is on cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("width", "factor"), [(192, 2), (1536, 1), (100, 3)])
def test_on_a_card(dtype, width, factor):
    generator = torch.Generator("cuda").manual_seed(1)
    sample = torch.randn(3, 321, width, generator=generator, device="cuda").to(dtype)[..., ::factor]
    kept = torch.randn(sample.shape, generator=generator, device="cuda").to(dtype)
    wanted = (sample.double() - kept.double()).abs().flatten(1).sum(1)
    assert fused.why_not(sample) == ""
    moved, sizes = fused.compare(sample, kept, compares=True, keeps=True)
    assert torch.equal(kept, sample)
    assert (moved.sum(1) / wanted - 1).abs().max().item() < 1e-5
    assert (sizes.sum(1) / sample.double().abs().flatten(1).sum(1) - 1).abs().max().item() < 1e-5
