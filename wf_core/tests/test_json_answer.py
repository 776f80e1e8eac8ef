"""With ``--json``, stdout is one JSON object, whoever prints and however the command ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wf_core.cli.settings import collect_settings, parse_setting, parse_value
from wf_core.errors import BadInput
from wf_core.sessions.report import Report
from wf_core.values import canonical_json, json_text, show

from .conftest import Site
from .test_cli_list import in_a_process, wf

__all__ = ["wf"]

FAR = 'schema = 1\nname = "m"\napi = 1\nkind = "model-source"\n[[model]]\nname = "far"\nfamily = "toy"\n'
PRINTS = (
    "import os\nfrom wf_core.api import hookimpl\nprint('at import')\n"
    "@hookimpl\ndef wf_model_source(name):\n"
    "    print('in a handler')\n    os.write(1, b'from C')\n    raise ValueError('no \\udcff such file')\n"
)


def test_everything_that_is_printed_goes_to_stderr_but_the_answer(tmp_path: Path) -> None:
    code = (
        "import atexit, ctypes, os, subprocess\nfrom wf_core.cli.answer import answering\n"
        "atexit.register(print, 'at exit')\n"
        "with answering() as answer:\n"
        "    print('python')\n    os.write(1, b'descriptor\\n')\n    ctypes.CDLL(None).puts(b'buffered')\n"
        "    subprocess.run(['echo', 'child'])\n"
        "    answer.give({'x': float('nan')})\n    answer.give({'second': 1})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"x": "NaN"}
    for word in ("python", "descriptor", "buffered", "child", "at exit"):
        assert word in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "far", "--prompt", "x", "--out", "clip.mp4", "--json"],
        ["calibrate", "good", "far", "--prompt", "x", "--out", "preset.json", "--json"],
    ],
)
def test_a_plugin_that_prints_does_not_reach_stdout(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    site.family()
    site.cache("cache-good")
    site.plugin("m", FAR, PRINTS)
    monkeypatch.chdir(tmp_path)
    done = in_a_process(site, *arguments)
    assert done.returncode == 2, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) == {"schema", "error"}
    assert "wf_model_source" in answer["error"]
    for words in ("at import", "in a handler", "from C"):
        assert words in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["resolve", "x", "--family", "toy", "--json", "-s", "nonsense"],
        ["resolve", "x", "--json", "--stepz", "2"],
        ["resolve", "--json"],
        ["show", "nothing", "--json"],
        ["run", "x", "--json", "--prompt", "x", "--out", "clip.txt"],
        ["list-plugin", "--json"],
    ],
)
def test_bad_input_is_one_object_and_one_line(site: Site, wf: Any, arguments: list[str]) -> None:
    site.family()
    result = wf(*arguments)
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["schema"] == 1
    assert result.stderr == f"wf: {answer['error']}\n"


def test_a_refused_run_is_the_refusal(
    site: Site, wf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wf_core.media.require_writers", lambda: None)
    site.family()
    site.plugin("m", FAR)
    out = str(tmp_path / "clip.mp4")
    result = wf("run", "far", "--prompt", "x", "--out", out, "--json", "-s", "nonsense=1")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["violations"][0]["code"] == "WF-R001"
    assert result.stderr.count("\n") == 1


def test_a_fault_of_the_host_is_one_object_too(wf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("wf_core.cli.list_plugins.discover", fail)
    result = wf("list-plugins", "--json")
    assert result.exit_code == 1
    assert "ZeroDivisionError: oh" in json.loads(result.stdout)["error"]


def test_a_plugin_that_prints_bytes_at_exit_is_probed_like_any_other(site: Site) -> None:
    site.cache("cache-good", "import atexit, os\natexit.register(os.write, 1, b'\\xff late')\n")
    done = in_a_process(site, "doctor", "--json", WF_ONLY="cache-good")
    [plugin] = [p for p in json.loads(done.stdout)["plugins"] if p["name"] == "cache-good"]
    assert plugin["state"] == "available"


@pytest.mark.parametrize("arguments", ["'list-plugins'", "'list-plugins', '--json'"])
def test_a_closed_stdout_is_no_fault(arguments: str) -> None:
    code = f"import sys\nfrom wf_core.cli import main\nmain([{arguments}])\n"
    command = f'exec {sys.executable} -c "$CODE" >&-'
    done = subprocess.run(["sh", "-c", command], env={"CODE": code}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_json_is_valid_whatever_it_holds() -> None:
    value = {"a": [float("inf"), -float("inf"), float("nan")], "b": "é\ud800"}
    for text in (json_text(value), canonical_json(value), Report(value).to_json()):
        assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["a"] == [
            "Infinity", "-Infinity", "NaN",
        ]  # fmt: skip
        assert text.isascii()
    assert show(float("nan")) == "NaN"


def test_a_setting_is_finite_shallow_text_with_each_key_once() -> None:
    assert [parse_value(text) for text in ("1e400", "-1e400", "Infinity", "[NaN]")] == [
        "1e400", "-1e400", "Infinity", ["NaN"],
    ]  # fmt: skip
    for text, words in (
        ("a=\udcff", "not valid text"),
        ('a="\\ud800"', "not valid text"),
        ('a={"b": 1, "b": 2}', "'b' is given twice"),
        ("a=" + "[" * 100_000, "nested too deeply"),
    ):
        with pytest.raises(BadInput, match=words):
            parse_setting(text)


def test_a_file_of_settings_is_strict_json(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    file.write_bytes(b'\xef\xbb\xbf{"compile": true}')
    assert collect_settings([], file) == {"compile": True}
    for text, words in (
        ('{"a": NaN}', "NaN is no JSON value"),
        ('{"a": -Infinity}', "Infinity is no JSON value"),
        ('{"a": 1e400}', "1e400 is out of the range"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is given twice"),
        ('{"a": "\\ud800"}', "not valid text"),
        ("[" * 100_000, "nested too deeply"),
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match=words) as caught:
            collect_settings([], file)
        assert str(caught.value).startswith(f"{file}: ")
