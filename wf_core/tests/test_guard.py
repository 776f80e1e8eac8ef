"""Process-wide state is seen, restored, and held by one session at a time."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy
import pytest
import torch

from wf_core.errors import BadInput, Busy
from wf_core.isolation.guard import ProcessState, import_guard, process_global
from wf_core.isolation.process_lock import ProcessLock
from wf_core.isolation.process_settings import MIXED, SETTINGS


@pytest.fixture(autouse=True)
def process():
    """Every test here must leave the process as it found it; the state itself is what restores it."""
    before = ProcessState.capture()
    yield before
    before.restore()


def child(script):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stderr


def hook(*args):
    return None


CHANGES = {
    "default_dtype": lambda: torch.set_default_dtype(torch.bfloat16),
    "sdpa_flash": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "sdpa_mem_efficient": lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "sdpa_math": lambda: torch.backends.cuda.enable_math_sdp(False),
    "sdpa_cudnn": lambda: torch.backends.cuda.enable_cudnn_sdp(False),
    "matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "fp32_all": lambda: setattr(torch.backends, "fp32_precision", "ieee"),
    "fp32_cudnn": lambda: setattr(torch.backends.cudnn, "fp32_precision", "ieee"),
    "fp32_cuda_matmul": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "fp32_cudnn_conv_rnn": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "fp32_mkldnn_matmul": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "fp32_mkldnn_conv": lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
    "fp32_mkldnn_rnn": lambda: setattr(torch.backends.mkldnn.rnn, "fp32_precision", "bf16"),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "cudnn_benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn_deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "grad_mode_of_this_thread": lambda: torch.set_grad_enabled(False),
    "default_device_of_this_thread": lambda: torch.set_default_device("meta"),
    "global_module_hooks": lambda: torch.nn.modules.module.register_module_forward_hook(hook),
    "sdpa_function": lambda: setattr(torch.nn.functional, "scaled_dot_product_attention", hook),
}


def change_attention_backend():
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    _AttentionBackendRegistry.set_active_backend("other")


CHANGES["diffusers_attention_backend"] = change_attention_backend
CHANGES |= {
    "working_directory": lambda: os.chdir("/"),
    "recursion_limit": lambda: sys.setrecursionlimit(900),
    "handler_of_interrupts": lambda: signal.signal(signal.SIGINT, lambda *_: None),
    "logging_disabled_below": lambda: logging.disable(logging.INFO),
    "threads_of_torch": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
}


def test_every_setting_is_tested():
    assert CHANGES.keys() == SETTINGS.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_setting_is_seen_and_put_back(name):
    import diffusers.models.attention_dispatch  # noqa: F401

    before = ProcessState.capture()
    CHANGES[name]()
    lines = before.diff(ProcessState.capture())
    assert any(line.startswith(f"{name}: ") for line in lines), lines
    assert before.restore() == []
    assert before.diff(ProcessState.capture()) == []
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32  # noqa: B018  must not raise


def test_contradicting_tf32_settings_are_read_without_raising():
    process = ProcessState.capture()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    mixed = ProcessState.capture()
    assert mixed.values["matmul_precision"] == MIXED
    assert process.restore() == []
    assert mixed.restore() == []
    assert mixed.diff(ProcessState.capture()) == []


def test_environment_is_put_back_and_values_are_not_shown(monkeypatch):
    monkeypatch.setenv("WF_TEST_OLD", "secret")
    before = ProcessState.capture()
    os.environ["WF_TEST_NEW"] = "secret"
    del os.environ["WF_TEST_OLD"]
    lines = before.diff(ProcessState.capture())
    assert lines == ["environment variable WF_TEST_NEW set", "environment variable WF_TEST_OLD removed"]
    assert "secret" not in repr(before)
    before.restore()
    assert os.environ["WF_TEST_OLD"] == "secret" and "WF_TEST_NEW" not in os.environ


def test_grad_mode_of_another_thread_is_no_change():
    states = []

    def work():
        torch.set_grad_enabled(False)
        states.append(ProcessState.capture())

    thread = threading.Thread(target=work)
    before = ProcessState.capture()
    thread.start()
    thread.join()
    assert before.diff(states[0]) == []
    states[0].restore()
    assert torch.is_grad_enabled()


def test_capture_works_without_torch_and_does_not_import_it():
    child("""
        import sys
        from wf_core.isolation.guard import ProcessState, import_guard, process_global
        from wf_core.errors import BadInput
        before = ProcessState.capture()
        with import_guard() as guard:
            import json.tool
        assert guard.changes == [] and before.diff(ProcessState.capture()) == []
        try:
            with process_global({"allow_tf32": True}): raise AssertionError
        except BadInput as error:
            assert "torch is not loaded" in str(error)
        assert "torch" not in sys.modules
    """)


def test_fresh_import_of_torch_and_diffusers_is_no_change_but_a_setting_is():
    child("""
        from wf_core.isolation.guard import ProcessState, import_guard
        before = ProcessState.capture()
        with import_guard() as guard:
            import torch
            import warnings
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import diffusers.models.attention_dispatch
        assert guard.changes == [], guard.changes
        assert before.diff(ProcessState.capture()) == []
        with import_guard() as guard: pass
        torch.set_default_dtype(torch.float16)
        assert before.diff(ProcessState.capture()) == ["default_dtype: torch.float32 -> torch.float16"]
        assert before.restore() == [] and torch.get_default_dtype() is torch.float32
    """)


def test_a_process_that_was_started_with_interrupts_ignored_is_as_it_was():
    child("""
        import os, signal, subprocess, sys
        code = (
            "from wf_core.isolation.guard import import_guard\\n"
            "with import_guard() as guard: import signal\\n"
            "assert guard.changes == [], guard.changes\\n"
            "assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN"
        )
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        subprocess.run([sys.executable, "-c", code], check=True)
    """)


def test_import_that_changes_the_process_is_reported_and_undone(tmp_path, monkeypatch):
    (tmp_path / "greedy_plugin.py").write_text(
        "import os, random, numpy, torch\n"
        "random.seed(0); numpy.random.seed(0); torch.manual_seed(0)\n"
        "torch.set_float32_matmul_precision('high')\nos.environ['WF_TEST_NEW'] = '1'\n"
        "raise ImportError('and then it fails')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    streams = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with pytest.raises(ImportError, match="and then"), import_guard() as guard:
        import greedy_plugin  # noqa: F401
    assert guard.changes == [
        "matmul_precision: highest -> high",
        "fp32_cuda_matmul: none -> tf32",
        "fp32_mkldnn_matmul: none -> tf32",
        "environment variable WF_TEST_NEW set",
        "random numbers drawn or seeded: python's random",
        "random numbers drawn or seeded: numpy.random",
        "random numbers drawn or seeded: torch's CPU generator",
    ]
    assert streams == (
        random.getstate(),
        numpy.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    )
    assert torch.get_float32_matmul_precision() == "highest" and "WF_TEST_NEW" not in os.environ


def test_declared_settings_hold_inside_and_are_restored_on_error():
    process = ProcessState.capture()
    torch.set_default_dtype(torch.float64)
    with (
        pytest.raises(KeyError),
        process_global({"allow_tf32": True, "deterministic": True, "sdpa_flash": False}),
    ):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
        torch.set_default_dtype(torch.float32)
        raise KeyError
    torch.set_default_dtype(torch.float32)
    assert process.diff(ProcessState.capture()) == []


def test_only_declared_settings_are_restored():
    with process_global({"cudnn_benchmark": True}):
        torch.set_default_dtype(torch.float64)
    assert torch.get_default_dtype() is torch.float64
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("settings", "error"), [({"allow_tf33": True}, BadInput), ({"matmul_precision": "huge"}, Exception)]
)
def test_setting_that_cannot_be_made_leaves_nothing_behind(settings, error):
    process = ProcessState.capture()
    with pytest.raises(error), process_global({"cudnn_benchmark": True, **settings}):
        raise AssertionError("must not be entered")
    assert process.diff(ProcessState.capture()) == []


def in_thread(function):
    result = []

    def work():
        try:
            result.append(function())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, result


def test_sessions_share_and_an_exclusive_one_names_them():
    lock = ProcessLock()
    with lock.shared("first"):
        thread, result = in_thread(lambda: lock.acquire_shared("second"))
        thread.join()
        thread, refused = in_thread(lambda: lock.acquire_exclusive("third", timeout=0.01))
        thread.join()
        assert isinstance(refused[0], Busy)
        assert "third needs the process exclusively: not free within 0.01 s" in str(refused[0])
        assert "first (shared), second (shared)" in str(refused[0])
        lock.release(result[0])
    assert lock.holders == ()


def test_shared_waits_for_an_exclusive_one():
    lock = ProcessLock()
    token = lock.acquire_exclusive("alone")
    thread, refused = in_thread(lambda: lock.acquire_shared("other", timeout=0.01))
    thread.join()
    assert "alone (exclusive)" in str(refused[0])
    thread, result = in_thread(lambda: lock.acquire_shared("other", timeout=5))
    lock.release(token)
    thread.join()
    assert result[0].owner == "other" and lock.holders == ("other",)


@pytest.mark.parametrize(
    ("first", "second"), [("shared", "exclusive"), ("exclusive", "exclusive"), ("exclusive", "shared")]
)
def test_nesting_in_one_thread_is_refused_at_once(first, second):
    lock = ProcessLock()
    with getattr(lock, first)("outer"):
        started = time.monotonic()
        with pytest.raises(Busy, match=r"this thread holds it already.*outer"):
            getattr(lock, f"acquire_{second}")("inner", timeout=30)
        assert time.monotonic() - started < 5
    assert lock.holders == ()


def test_waiting_exclusive_request_is_not_starved_and_does_not_block_a_thread_that_shares():
    lock = ProcessLock()
    first = lock.acquire_shared("first")
    thread, result = in_thread(lambda: lock.acquire_exclusive("writer", timeout=10))
    while not lock._queue:
        time.sleep(0.001)
    late, refused = in_thread(lambda: lock.acquire_shared("late", timeout=0.01))
    late.join()
    assert "waiting before it: writer" in str(refused[0])
    lock.release(lock.acquire_shared("first again", timeout=0.01))
    lock.release(first)
    thread.join()
    assert lock.holders == ("writer",)


def test_thread_that_gets_the_number_of_an_ended_one_is_not_taken_for_it():
    lock = ProcessLock()
    thread, _ = in_thread(lambda: lock.acquire_shared("ended"))
    thread.join()
    for _ in range(20):
        thread, refused = in_thread(lambda: lock.acquire_exclusive("new", timeout=0))
        thread.join()
        assert "not free within 0 s" in str(refused[0])


def test_token_is_released_from_another_thread_and_only_once():
    lock = ProcessLock()
    token = lock.acquire_exclusive("owner")
    thread, _ = in_thread(lambda: lock.release(token))
    thread.join()
    lock.release(lock.acquire_exclusive("next"))
    with pytest.raises(BadInput, match="'owner'"):
        lock.release(token)


def test_nothing_that_excludes_ever_overlaps():
    lock, inside, faults = ProcessLock(), {"shared": 0, "exclusive": 0}, []

    def work(kind):
        for _ in range(50):
            with getattr(lock, kind)(kind, timeout=30):
                inside[kind] += 1
                if inside["exclusive"] and sum(inside.values()) > 1:
                    faults.append(dict(inside))
                inside[kind] -= 1

    threads = [in_thread(lambda k=k: work(k)) for k in ["shared"] * 4 + ["exclusive"] * 3]
    for thread, _ in threads:
        thread.join()
    assert faults == [] and [result for _, result in threads] == [[None]] * 7


def test_random_numbers_that_another_thread_draws_are_not_laid_to_an_import():
    done, drawing = threading.Event(), threading.Event()

    def draw():
        while not done.is_set():
            torch.rand(8)
            drawing.set()

    thread = threading.Thread(target=draw)
    thread.start()
    drawing.wait(10)
    try:
        with import_guard() as guard:
            time.sleep(0.05)
    finally:
        done.set()
        thread.join()
    assert guard.changes == []
