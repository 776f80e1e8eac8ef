"""A short soak; `make soak` runs the long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "soak/soak.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc"),
]


def test_a_few_requests_in_four_threads_equal_their_solo_runs_and_leave_nothing():
    """Resident memory is told by many requests only: few show no leak of tensors and none of Python's objects."""
    command = [sys.executable, str(PROGRAM), "--requests", "18", "--warm-up", "6", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    assert told["different_outputs"] == 0, told["broken"]
    assert told["tensors"][0] == told["tensors"][1]
    assert abs(told["python_change"]) <= 0.01
    assert (told["requests"], told["threads"]) == (18, 4)
    assert told["plans"] >= 16
