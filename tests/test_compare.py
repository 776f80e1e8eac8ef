"""``wf compare`` on tiny-wan, end to end: one request, a sweep, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from support.plugins import write_plugin
from wf_core.cli import main

PROMPT = "a red 3 moving left"
SMALL = ["--height", "64", "--width", "64", "--frames", "5", "--steps", "4"]
ALWAYS = ["-s", "teacache.coefficients=[1.0,0.0]", "-s", "teacache.threshold=10"]
"""A polynomial for any schedule, under a threshold that every free step is below: 2 of 4 steps are skipped."""
NTH = """
kind = "feature-cache"
summary = "Runs the blocks at every n-th solver step"

[[feature]]
name = "nth"
tier = "approximate"
tolerance = "lossy, without a bound; not measured"
slot = "feature-cache"
seams = ["stack"]
effects = ["skips-blocks@stack", "host-state@stack", "rank-uniform-decision", "holds-request-tensors", "inference-only"]
select = [{ switch = "feature_cache", values = ["nth"] }]
example = { feature_cache = "nth" }
sweep = [
    { feature_cache = "nth" },
    { feature_cache = { algorithm = "nth", interval = 4 } },
    { feature_cache = { algorithm = "nth", interval = 7 } },
    { feature_cache = { algorithm = "nth", interval = 1 } },
]
evidence = [{ counter = "computed", at_least = 1 }, { counter = "skipped", at_least = 1 }]

[[feature.option]]
name = "interval"
type = "int"
min = 2
default = 2
doc = "One step in so many is computed."
"""
CODE = """
from wf_core.api import hookimpl

@hookimpl
def wf_feature_cache(feature, options, facts):
    from wf_core.api import Decision, FeatureCache, ResidualState

    class Nth(ResidualState):
        def decide(self, step, value):
            due = step.index % options["interval"] == 0
            return Decision(due, "scheduled" if due else "between")

    class NthCache(FeatureCache):
        def check(self, run):
            return ["an interval of 7 is longer than this run."] if options["interval"] == 7 else []

        def new_state(self, run, expert, branch):
            return Nth()

    return NthCache()
"""
ELSEWHERE = {
    "model": "tiny-wan", "device": "a card", "dtype": "bfloat16", "num_inference_steps": 4, "guidance_scale": 3.0,
    "request": {"feature_cache": "nth"}, "feature": "nth", "steps_computed": 4, "steps_total": 8,
    "psnr": 20.0, "psnr_mean": 21.0, "prompt_score": None, "plain_prompt_score": None,
}  # fmt: skip
"""A row of a table that was measured on another device."""


def wf(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", "tiny-wan", *arguments])


def answer(*arguments: str) -> dict[str, Any]:
    result = wf(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# --- one request -------------------------------------------------------------------------------------------------


def test_an_accelerated_run_is_compared_in_one_object_and_as_a_page(tmp_path: Path) -> None:
    found = answer("--prompt", PROMPT, *SMALL, *ALWAYS, "--out", str(tmp_path / "out"))
    assert (found["schema"], found["steps_computed"], found["steps_total"]) == (1, 4, 8)
    assert found["report"]["steps"]["forwards"] == {"called": 8, "computed": 4}
    assert found["report"]["effective"]["teacache"]["state"] == "effective"
    assert 5 < found["psnr"] < 60 and 0 < found["ssim"] < 1 and 0 < found["latent_cosine"] < 1
    assert found["speedup"] == pytest.approx(found["plain_seconds"] / found["seconds"], rel=1e-3)
    assert not found["identical"] and found["peak_bytes"] is None
    assert set(found["prompt_scores"]) == {"colour", "direction", "digit"}
    assert found["prompt_score"] == pytest.approx(sum(found["prompt_scores"].values()) / 3, rel=1e-4)
    assert found["request"] == {"teacache.coefficients": [1.0, 0.0], "teacache.threshold": 10}
    [row] = found["prompts"]
    assert (row["prompt"], row["seed"], row["psnr"]) == (PROMPT, 0, found["psnr"])

    files = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert set(files) == {
        "index.html", "comparison.json", "contact-sheet.png", "plain-00.mp4", "accelerated-00.mp4",
    }  # fmt: skip
    assert all(files.values())
    kept = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert kept == {key: value for key, value in found.items() if key != "written"}
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("data:video/mp4;base64,") == 2 and PROMPT in page
    assert page.count('<td class="skipped"') == page.count('<td class="computed"') == 4


def test_an_empty_request_is_identical_and_what_nobody_can_judge_has_no_score() -> None:
    found = answer("--prompt", PROMPT, "--prompt", "a cat", "--batch", "2", *SMALL)
    assert found["identical"] and found["psnr"] is None and found["ssim"] == 1
    assert found["latent_cosine"] == pytest.approx(1, abs=1e-6)
    assert found["steps_computed"] == found["steps_total"] == 8
    assert 0 < found["speedup"] < 100 and found["request"] == {}
    assert found["prompts"][1]["prompt_score"] is None
    assert found["prompt_score"] == found["plain_prompt_score"] is not None


def test_without_json_the_numbers_are_a_table(tmp_path: Path) -> None:
    result = wf("--prompt", PROMPT, *SMALL[:-1], "1")
    assert result.exit_code == 0, result.stderr
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines() if "  " in line)
    assert lines["forwards computed"].strip() == lines["forwards of the plain run"].strip() == "2"
    assert lines["PSNR, worst prompt (dB)"].strip() == "identical"


# --- a sweep -----------------------------------------------------------------------------------------------------


@pytest.fixture
def nth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(write_plugin(tmp_path / "site", "cache-nth", NTH, CODE)))
    monkeypatch.delitem(sys.modules, "wf_plugin_cache_nth", raising=False)


@pytest.mark.usefixtures("nth")
def test_a_sweep_adds_to_a_table_and_draws_the_frontier(tmp_path: Path) -> None:
    table = tmp_path / "docs" / "caches.json"
    table.parent.mkdir()
    table.write_text(json.dumps({"best": None, "rows": [ELSEWHERE]}))
    sweep = ["--prompt", PROMPT, "--sweep", "--feature", "nth", "--table", str(table), *SMALL]
    found = answer(*sweep, "--out", str(tmp_path / "out"))
    assert [(row["steps_computed"], row["steps_total"]) for row in found["rows"]] == [(4, 8), (2, 8)]
    assert found["best"] is None  # these are not the model's own steps
    assert [one["request"]["feature_cache"]["interval"] for one in found["skipped"]] == [1, 7]
    assert "longer than this run" in found["skipped"][1]["reason"]
    written = json.loads(table.read_text())
    assert set(written) == {"best", "rows"} and len(written["rows"]) == 3 and ELSEWHERE in written["rows"]
    assert (tmp_path / "docs" / "caches.svg").read_text().count(">nth</text>") == 1
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<svg" in page and page.count('class="strip"') == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "index.html", "frontier.svg", "comparison.json",
    }  # fmt: skip


# --- what is refused ---------------------------------------------------------------------------------------------

REFUSED = {
    "an unknown key": (["-s", "feature_cash=teacache"], "feature_cash"),
    "guidance that is no number": (["--guidance", "nan"], "guidance_scale"),
    "no steps": (["--steps", "0"], "num_inference_steps"),
    "a device of another name": (["--device", "tpu"], "tpu"),
    "a dtype of another name": (["--dtype", "int8"], "int8"),
    "a batch of nothing": (["--batch", "0"], "batch"),
    "a feature without a sweep": (["--sweep", "--feature", "teecache"], "teecache"),
    "a table without a sweep": (["--table", "t.json"], "--sweep"),
    "a folder that is a file": (["--out", "file"], "not a directory"),
    "a file that is no table": (["--sweep", "--table", "file"], "not valid JSON"),
    "a table named like its plot": (["--sweep", "--table", "t.svg"], "plot"),
    "a table that is the record": (
        ["--sweep", "--out", "o", "--table", "o/../o/comparison.json"],
        "another file",
    ),
    "a plot that is the sweep's": (["--sweep", "--out", "o", "--table", "o/frontier.json"], "another file"),
    "a seed at the end of its range": (["--prompt", "y", "--seed", str(2**63 - 1)], "too large"),
    "a cache and a graph": (["-s", "feature_cache=teacache", "-s", "cuda_graph=true"], "cuda_graph"),
}


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which importing torch fails: a refusal must not need it."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("no JSON")
    arguments, word = REFUSED[case]
    monkeypatch.setattr("wf_core.checkpoints.load_pipeline", None)  # nothing is loaded
    result = wf("--prompt", "x", *arguments)
    assert result.exit_code == 2, result.output
    assert word in result.stderr and len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"steps_computed": "4"}, "type"),
        ({"steps_total": None}, "type"),
        ({"psnr": True}, "type"),
        ({"prompt_score": "high"}, "type"),
        ({"feature": 3}, "type"),
        ({"request": ["nth"]}, "type"),
        ({"steps_computed": 10**400}, "type"),
        ({"steps_total": 0}, "forwards"),
        ({"psnr_mean": None}, "psnr_mean"),
        ({"prompt_score": 1.0}, "plain_prompt_score"),
        ("feature", "no feature"),
        ("psnr_mean", "no psnr_mean"),
    ],
)
def test_a_damaged_table_is_refused_before_anything_is_run_and_left_as_it_was(
    change: dict[str, Any] | str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (
        ELSEWHERE | change
        if isinstance(change, dict)
        else {k: v for k, v in ELSEWHERE.items() if k != change}
    )
    table = tmp_path / "t.json"
    text = json.dumps({"best": None, "rows": [ELSEWHERE, row]})
    table.write_text(text)
    monkeypatch.setattr("wf_core.checkpoints.load_pipeline", None)  # nothing is loaded
    result = wf("--prompt", "x", "--sweep", "--feature", "taylorseer", "--table", str(table))
    assert result.exit_code == 2, result.output
    assert word in result.stderr and "row 1" in result.stderr and len(result.stderr.splitlines()) == 1
    assert table.read_text() == text and list(tmp_path.iterdir()) == [table]


def test_a_refusal_needs_no_torch(without_torch: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wf_core", "compare", "tiny-wan", "-s", "feature_cash=x", "--out", "out", "--json"],
        cwd=tmp_path, env=without_torch, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "torch" not in done.stderr
    assert "feature_cash" in json.loads(done.stdout)["violations"][0]["reason"]


def test_a_model_without_prompts_of_its_own_needs_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["compare", str(tmp_path)])
    assert result.exit_code == 2 and "--prompt" in result.stderr


def test_missing_libraries_are_named_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wf_core.comparing.requirements.find_spec", lambda name: None)
    result = wf("--prompt", "x")
    assert result.exit_code == 2 and "pip install 'wf-core[compare]'" in result.stderr
