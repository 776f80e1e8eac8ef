"""What the settings do to results, and what torch refuses under them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from wf_core import BadInput, Refused

FLASH, MATH = 1, 0
"""torch's numbers of the two kernels that there are on the CPU."""


def relative(out, reference):
    return float((out.double() - reference.double()).norm() / reference.double().norm())


def choice():
    q = torch.zeros(1, 2, 8, 16)
    return torch._fused_sdp_choice(q, q, q)


@pytest.fixture
def plain(run):
    return run({})[0]


@pytest.mark.parametrize(("policy", "kernel"), [("auto", FLASH), ("flash", FLASH), ("math", MATH)])
def test_a_policy_decides_what_torch_chooses(policy, kernel, run, plain):
    out, _, chosen = run({"attention_policy": policy}, choice)
    assert chosen == kernel
    assert torch.equal(out, plain) is (kernel == FLASH), "by itself torch takes flash on the CPU"
    assert relative(out, plain) <= 1e-5


def test_a_call_that_the_one_kernel_cannot_serve_raises(run):
    """Flash on the CPU has no dropout."""

    def attend():
        q = torch.zeros(1, 2, 8, 16)
        return functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    assert run({"attention_policy": "math"}, attend)[2].shape == (1, 2, 8, 16)
    with pytest.raises(RuntimeError, match="No available kernel"):
        run({"attention_policy": "flash"}, attend)


@pytest.mark.parametrize(
    ("request_", "bound"),
    [
        ({"enable_tf32": True}, 1e-3),
        ({"enable_tf32": False}, 0),
        ({"matmul_precision": "highest"}, 0),
        ({"matmul_precision": "high"}, 1e-3),
        ({"matmul_precision": "medium"}, 2e-2),
        ({"deterministic": True}, 1e-6),
        ({"deterministic": False}, 0),
    ],
    ids=str,
)
def test_results_differ_within_the_stated_tolerance(request_, bound, run, plain):
    """On the CPU nothing but ``medium`` changes a product, and that only where the processor has bfloat16 ones."""
    assert relative(run(request_)[0], plain) <= bound


def test_determinism_raises_where_there_is_no_deterministic_implementation(run):
    def unpool():
        return functional.max_unpool2d(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.long), 2)

    assert run({}, unpool)[2].shape == (1, 1, 4, 4)
    assert run({"deterministic": False}, unpool)[2].shape == (1, 1, 4, 4)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        run({"deterministic": True}, unpool)


@pytest.mark.parametrize(("tf32", "precision"), [(True, "highest"), (False, "high"), (False, "medium")])
def test_contradicting_names_of_one_flag_are_refused(tf32, precision, host, model):
    with pytest.raises(Refused) as refused:
        host.resolve(model, {"enable_tf32": tf32, "matmul_precision": precision})
    assert [v.code for v in refused.value.refusal.violations] == ["WF-E003"]


@pytest.mark.parametrize("request_", [{"enable_tf32": True}, {"matmul_precision": "high"}], ids=str)
def test_a_process_whose_settings_contradict_each_other_is_refused(request_, host, model):
    """torch cannot say then what is set, and it could not be put back."""
    torch.backends.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        with pytest.raises(BadInput, match=r"contradicts torch\.set_float32_matmul_precision"):
            host.session(model, request_)
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
    finally:
        torch.backends.fp32_precision = "none"
