"""The Triton kernels against their references and float64, in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has wheels for Linux only")

SCRIPT = Path(__file__).with_name("interpreted_kernels.py")


@pytest.fixture(scope="module")
def found():
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT)], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cases(found, *words):
    """The results of the cases with these words in their names."""
    picked = [
        result for name, results in found.items() if set(words) <= set(name.split()) for result in results
    ]
    assert picked, words
    return picked


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
@pytest.mark.parametrize("kernel", ["norm", "rope"])
def test_no_result_is_worse_than_the_references(found, kernel, kind):
    for result in cases(found, kernel, kind):
        assert result["ours"] <= 1.1 * result["reference"] + (1e-7 if kind == "fp32" else 0.0), result


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
@pytest.mark.parametrize("family", ["hunyuan", "cosmos"])
def test_norms_of_single_heads_are_no_worse_than_stock_at_published_sizes(found, family, kind):
    """The reference is bit for bit the families' own code, and so many heads leave nothing to chance."""
    for result in cases(found, "rope", kind, family, "published"):
        assert result["ours"] <= 1.1 * result["reference"], result
        assert result["ours"] >= 0.8 * result["reference"], "a rounding of the stock code is left out"


@pytest.mark.parametrize("how", ["shared", "per-token", "by-index", "gate"])
@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_residuals_are_equal_bit_for_bit(found, kind, how):
    assert all(result["equal"] for result in cases(found, "residual", kind, how))


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_rows_of_the_models_dtype_are_no_worse_than_stock(found, kind):
    typed = found[f"typed {kind}"]
    assert len(typed) == 2 * 2 * (3 if kind == "fp32" else 2)
    for name, how, ours, stock, dtype in typed:
        assert ours <= 1.1 * stock + (1e-7 if kind == "fp32" else 0.0), (name, how)
        assert stock > 1e-9 and dtype == {"fp32": "torch.float32", "fp16": "torch.float16"}[kind]


def test_residuals_written_over_their_input_are_the_same(found):
    assert found["in place"] is True


def test_results_are_contiguous_and_of_the_inputs_dtype(found):
    for kernel in ("norm", "residual", "rope"):
        assert all(result["contiguous"] for result in cases(found, kernel))


def test_no_kernel_hides_an_error_in_a_small_scale(found):
    """What is compared is not zero, nor nearly: the references' own errors are those of the dtypes."""
    for kind, least, most in (("fp32", 1e-9, 1e-6), ("fp16", 1e-5, 1e-3)):
        for kernel in ("norm", "rope"):
            assert all(least < result["reference"] < most for result in cases(found, kernel, kind))


def test_the_gate_opens_in_the_interpreter_and_calls_are_counted_by_kernel(found):
    assert found["gate"] == ""
    assert found["counters"] == {"calls": 3, "norm_modulate_calls": 1, "gated_residual_calls": 2}
