"""Flags of the process: what a call sees, what is left afterwards, and that nobody else is there meanwhile."""

from __future__ import annotations

import gc

import pytest
import torch

from wf_core import BaseModified, Busy, Host, PluginFault
from wf_core.api import Technique
from wf_core.testing import ProcessState

from .conftest import Spy, inputs

SDPA = ("sdpa_flash", "sdpa_cudnn", "sdpa_mem_efficient", "sdpa_math")
CASES = [
    ({"attention_policy": "auto"}, dict.fromkeys(SDPA, True)),
    ({"attention_policy": "flash"}, {**dict.fromkeys(SDPA, False), "sdpa_flash": True}),
    ({"attention_policy": "math"}, {**dict.fromkeys(SDPA, False), "sdpa_math": True}),
    ({"enable_tf32": True}, {"fp32_cuda_matmul": "tf32", "fp32_cudnn_conv_rnn": ("tf32", "tf32")}),
    ({"enable_tf32": False}, {"fp32_cuda_matmul": "ieee", "fp32_cudnn_conv_rnn": ("none", "none")}),
    ({"matmul_precision": "highest"}, {"matmul_precision": "highest", "fp32_cuda_matmul": "ieee"}),
    ({"matmul_precision": "high"}, {"matmul_precision": "high", "fp32_cuda_matmul": "tf32"}),
    ({"matmul_precision": "medium"}, {"matmul_precision": "medium"}),
    ({"deterministic": True}, {"deterministic": (True, False)}),
    ({"deterministic": False}, {"deterministic": (False, False)}),
]
STRICTEST = {
    "attention_policy": "math",
    "enable_tf32": True,
    "matmul_precision": "medium",
    "deterministic": True,
}
each_case = pytest.mark.parametrize(("request_", "wanted"), CASES, ids=[str(request) for request, _ in CASES])


def flags():
    return dict(ProcessState.capture().values)


@pytest.fixture
def odd():
    """A process in which every setting is another than torch's own."""
    before = ProcessState.capture()
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "none"
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    before.restore()


@each_case
def test_a_call_sees_the_setting_and_nobody_afterwards(request_, wanted, run):
    before = flags()
    _, report, seen = run(request_, flags)
    assert {name: seen[name] for name in wanted} == wanted
    assert flags() == before
    [claim] = report["effective"].values()
    assert claim["state"] == "effective"
    assert claim["evidence"]["calls"] == 1


@each_case
def test_what_the_user_had_set_comes_back(request_, wanted, odd, run):
    before = flags()
    _, report, seen = run(request_, flags)
    assert {name: seen[name] for name in wanted} == wanted
    assert flags() == before
    [claim] = report["effective"].values()
    assert claim["state"] == "effective"


def test_all_at_once(run):
    _, report, seen = run(STRICTEST, flags)
    assert {name: claim["state"] for name, claim in report["effective"].items()} == dict.fromkeys(
        ("attention-policy", "tf32", "matmul-precision", "deterministic"), "effective"
    )
    assert seen["matmul_precision"] == "medium", "TF32 allowed, and products in even less"


def test_after_an_exception_the_session_keeps_its_setting_and_closing_puts_back(host, model):
    before = flags()

    def fail():
        raise RuntimeError("in the middle")

    spy = Spy(fail)
    with host.session(model, STRICTEST, extra={"spy": spy}) as session:
        held = flags()
        with pytest.raises(RuntimeError, match="in the middle"), session.run():
            session.model(**inputs())
        assert flags() == held != before
    assert flags() == before


def test_a_session_left_by_an_exception_puts_back(host, model):
    before = flags()
    with pytest.raises(KeyboardInterrupt), host.session(model, STRICTEST):
        raise KeyboardInterrupt
    assert flags() == before


def test_a_failed_open_sets_nothing_and_leaves_the_process_free(host, model):
    class Broken(Technique):
        def prepare(self, components):
            raise ValueError("not today")

    before = flags()
    with pytest.raises(PluginFault, match="not today"):
        host.session(model, STRICTEST, extra={"broken": Broken()})
    assert flags() == before
    host.session(model, STRICTEST).close()


def test_a_session_that_is_dropped_open_puts_back_too(host, model):
    before = flags()
    session = host.session(model, STRICTEST)
    assert flags() != before
    del session
    gc.collect()
    assert flags() == before
    host.session(model, STRICTEST).close()


@each_case
def test_no_other_session_beside_it(request_, wanted, host, model):
    with host.session(model, request_):
        with pytest.raises(Busy):
            host.session(model, {})
        with pytest.raises(Busy):
            host.session(model, request_)
    with host.session(model, {}), pytest.raises(Busy):
        host.session(model, request_)


def test_a_flag_that_is_changed_meanwhile_is_no_success(host, model):
    session = host.session(model, {"attention_policy": "math"})
    with torch.no_grad(), session.run():
        session.model(**inputs())
        torch.backends.cuda.enable_flash_sdp(True)
        session.model(**inputs())
    claim = session.report["effective"]["attention-policy"]
    assert claim["state"] == "partial"
    assert claim["evidence"]["calls"] == 2
    assert claim["evidence"]["calls_under_policy"] == 1
    assert claim["evidence"]["seen"]["sdpa_flash"] is True
    with pytest.raises(BaseModified, match="sdpa_flash"):
        session.close()


ENVIRONMENT = [
    ("ATTENTION_BACKEND", "math", "attention-policy", {"sdpa_flash": False, "sdpa_math": True}),
    ("ATTENTION_BACKEND", "flash3", "attention-policy", {"sdpa_flash": True, "sdpa_math": True}),
    ("ENABLE_TF32", "1", "tf32", {"fp32_cuda_matmul": "tf32"}),
    ("ENABLE_TF32", "0", "tf32", {"fp32_cuda_matmul": "ieee"}),
    ("MATMUL_PRECISION", "medium", "matmul-precision", {"matmul_precision": "medium"}),
    ("DETERMINISTIC", "1", "deterministic", {"deterministic": (True, False)}),
]


@pytest.mark.parametrize(("variable", "value", "feature", "wanted"), ENVIRONMENT)
def test_a_variable_of_the_environment_takes_effect(variable, value, feature, wanted, host, run):
    asked = Host(host.discovery, environ={f"WORLDFOUNDRY_{variable}": value})
    _, report, seen = run({}, flags, asked)
    assert {name: claim["state"] for name, claim in report["effective"].items()} == {feature: "effective"}
    assert {name: seen[name] for name in wanted} == wanted
