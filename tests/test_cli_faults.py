"""The command line on a real model, where libraries print as they like."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from wf_core.cli import main


@pytest.mark.slow
def test_a_run_with_json_prints_one_object_whoever_else_prints(tmp_path):
    """A run, and an exit handler, that write to stdout in every way there is."""
    (tmp_path / "noisy.py").write_text(
        "import atexit, os, sys\n"
        "from wf_core.sessions import runner\n"
        "from wf_core.cli import main\n"
        "stock = runner.Runner.running\n"
        "def running(*a, **k):\n    print('from python')\n    os.write(1, b'from C')\n    return stock(*a, **k)\n"
        "runner.Runner.running = running\n"
        "atexit.register(print, 'at exit')\n"
        "main(sys.argv[1:])\n"
    )
    arguments = [
        "run",
        "tiny-wan",
        "--prompt",
        "a red 3",
        "--out",
        "clip.gif",
        "--steps",
        "1",
        "--frames",
        "5",
    ]
    done = subprocess.run(
        [sys.executable, "noisy.py", *arguments, "--report", "report.json", "--json"],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["report"] == json.loads((tmp_path / "report.json").read_text())
    assert sorted(answer["written"].values()) == ["clip.gif", "clip.png", "report.json"]
    for words in ("from python", "from C", "at exit"):
        assert words in done.stderr


@pytest.mark.parametrize("guidance", ["nan", "inf"])
def test_a_calibration_with_a_guidance_that_is_no_number_is_refused(guidance, tmp_path, monkeypatch):
    """It would measure a run that nobody makes, and write the file."""
    monkeypatch.setattr("wf_core.checkpoints.load_pipeline", None)  # nothing is loaded
    out = tmp_path / "preset.json"
    arguments = ["calibrate", "magcache", "tiny-wan", "--out", str(out), "--guidance", guidance]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "--guidance" in result.stderr and "finite" in result.stderr
    assert list(tmp_path.iterdir()) == []
