"""Plans that are kept: every legal case comes back from JSON, and what is opened or run is what the plan says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from support import models
from support.plugins import write_plugin
from wf_core import BadInput, Host, Plan, Refused

CASES = json.loads((Path(__file__).parent / "legality" / "cases.json").read_text())["cases"]
LEGAL = [case for case in CASES if case["legal"]]


def resolve(host: Host, case: dict[str, Any]) -> Plan:
    run = {"height": case["height"], "width": case["width"], "num_frames": case["frames"]}
    return host.resolve(
        case["model"],
        case["request"],
        run=run,
        family=None if host.model(case["model"]) else case["family"],
        device=case["device"],
        world=case["world"],
    )


@pytest.mark.parametrize("case", LEGAL, ids=lambda case: case["id"])
def test_a_legal_case_comes_back_from_json(host: Host, case: dict[str, Any]) -> None:
    plan = resolve(host, case)
    text = json.dumps(plan.to_json())
    again = host.load_plan(json.loads(text))
    assert again == plan
    assert again.hash == plan.hash
    assert json.dumps(again.to_json()) == text
    assert again.explain() == plan.explain()


# --- opening ----------------------------------------------------------------------------------------------------------

PASSING = """
from wf_core.api import Technique, hookimpl


class Passing(Technique):
    def handlers(self):
        return {"denoiser": self.denoiser}

    def denoiser(self, inner, site, *args):
        self.counters.add("calls")
        return inner(*args)


@hookimpl
def wf_fusion(feature, options, facts):
    return Passing()
"""
FEATURE = """
[[feature]]
name = "{name}"
tier = "exact"
seams = ["denoiser"]
families = ["*"]
evidence = [{{ counter = "calls", at_least = 1 }}]
{more}
[[switch]]
name = "{name}"
feature = "{name}"
form = "feature"
"""


def passing(root: Path) -> Path:
    """Features that pass everything through: one says that it captures a graph, one that it casts the weights."""
    cast = """
[[feature.option]]
name = "dtype"
type = "choice"
choices = ["bfloat16", "float32"]
sets = "model.dtype"
"""
    half = """
[[feature.condition]]
fact = "model.dtype"
eq = "bfloat16"
reason = "takes bfloat16, this is {value}"
"""
    manifest = 'kind = "fusion"\n' + "".join(
        FEATURE.format(name=name, more=more)
        for name, more in (("graph", 'effects = ["captures-graph@denoiser"]'), ("cast", cast), ("half", half))
    )
    return write_plugin(root, "fusion-passing", manifest, PASSING)


TEACACHE = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 0.2}}


def test_a_plan_opens_as_the_request_did(host: Host) -> None:
    pipe = models.p1()
    plan = host.load_plan(json.loads(json.dumps(host.resolve(pipe, TEACACHE).to_json())))
    with host.session(pipe, plan) as session:
        kept = session.pipe(**models.call()).frames
    with host.session(pipe, TEACACHE) as session:
        assert torch.equal(session.pipe(**models.call()).frames, kept)


def test_features_that_may_not_stand_together_do_not_open_by_a_plan(host_with) -> None:
    """The hash is right and each feature is as declared: the rules between them are judged when it is opened."""
    host = host_with(passing)
    pipe = models.p1()
    cache, graph = host.resolve(pipe, TEACACHE), host.resolve(pipe, {"graph": True})
    both = attrs.evolve(
        cache,
        features=(*cache.features, *graph.features),
        versions=tuple(sorted({*cache.versions, *graph.versions})),
    )
    plan = host.load_plan(json.loads(json.dumps(both.to_json())))
    with pytest.raises(Refused) as refused:
        host.session(pipe, plan)
    assert {"WF-C010", "WF-C011", "WF-C012"} == {
        violation.code for violation in refused.value.refusal.violations
    }
    for alone in (cache, graph):
        host.session(pipe, alone).close()


def test_a_value_that_takes_a_facts_place_does_so_when_the_plan_is_opened_and_run(host_with) -> None:
    host = host_with(passing)
    pipe = models.p1()
    with pytest.raises(Refused, match="takes bfloat16, this is float32"):
        host.session(pipe, {"half": True})
    with host.session(pipe, {"half": True, "cast": {"dtype": "bfloat16"}}) as session:
        session.pipe(**models.call(num_inference_steps=1))
        assert session.report["effective"]["half"]["state"] == "effective"


def test_flash_attention_on_a_float32_base_needs_the_cast(host: Host) -> None:
    on_h200 = {"device.type": "cuda", "device.sm": 90, "package.flash-attn": "2.8.3"}
    pipe = models.p1(attention_head_dim=16)
    with pytest.raises(Refused) as refused:
        host.resolve(pipe, {"attention_backend": "flash2"}, facts=on_h200)
    assert [violation.code for violation in refused.value.refusal.violations] == ["WF-A023"]
    for dtype in ("bf16", "bfloat16", "fp16"):
        plan = host.resolve(pipe, {"attention_backend": "flash2", "torch_dtype": dtype}, facts=on_h200)
        assert plan.feature("torch-dtype").option("dtype") == {"fp16": "float16"}.get(dtype, "bfloat16")
    with pytest.raises(Refused, match="WF-A023"):
        host.resolve(pipe, {"attention_backend": "flash2", "torch_dtype": "float32"}, facts=on_h200)


# --- the command line -------------------------------------------------------------------------------------------------

CALL = ("--height", 32, "--width", 32, "--frames", 5)
SETTINGS = ("-s", "feature_cache=teacache", "-s", "feature_cache.threshold=0.3")


def wf(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wf_core", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=180)


def run(cwd: Path, out: str, *more: object, model: str = "tiny-wan") -> subprocess.CompletedProcess[str]:
    asked = ("run", model, "--prompt", "a red 3 moving left", "--out", out, "--report", f"{out}.json")
    return wf(*asked, *CALL, *more, cwd=cwd)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``plan.json``, the answer of `wf resolve --json`."""
    folder = tmp_path_factory.mktemp("plans")
    done = wf("resolve", "tiny-wan", *SETTINGS, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "plan.json").write_text(done.stdout)
    return folder


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio's reader of the clip
def test_a_plan_runs_as_its_request_does(folder: Path) -> None:
    import imageio.v3 as imageio

    for out, more in (("kept.gif", ("--plan", "plan.json")), ("asked.gif", SETTINGS)):
        done = run(folder, out, *more)
        assert done.returncode == 0, done.stderr
    kept, asked = (np.asarray(imageio.imread(folder / out)) for out in ("kept.gif", "asked.gif"))
    assert kept.shape == asked.shape
    assert (kept == asked).all()
    reports = [json.loads((folder / f"{out}.json").read_text()) for out in ("kept.gif", "asked.gif")]
    assert reports[0]["plan"] == reports[1]["plan"]
    assert reports[0]["requested"] == reports[1]["requested"]
    assert reports[0]["effective"]["teacache"]["state"] == reports[1]["effective"]["teacache"]["state"]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal or of bad input."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("wf: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_plan_beside_a_request_is_bad_input(folder: Path) -> None:
    line = refused(run(folder, "no.gif", "--plan", "plan.json", *SETTINGS))
    assert "--plan plan.json is a request already decided: leave out -s and --load-json" in line
    (folder / "request.json").write_text('{"feature_cache": "teacache"}')
    assert "leave out -s" in refused(
        run(folder, "no.gif", "--plan", "plan.json", "--load-json", "request.json")
    )
    assert not list(folder.glob("no.gif*"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"feature_cache": "teacache"}', "not a plan of schema 1"),
        ('{"schema": 1, "legal": false, "violations": []}', "not a plan of schema 1"),
    ],
)
def test_what_is_no_plan(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    assert words in refused(run(tmp_path, "no.gif", "--plan", "plan.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_for_another_model_is_refused(folder: Path, host: Host) -> None:
    plan = host.resolve("hunyuanvideo", {}, device="h200")
    (folder / "other.json").write_text(json.dumps(plan.to_json()))
    line = refused(run(folder, "no.gif", "--plan", "other.json"))
    assert "hunyuan" in line
    assert not list(folder.glob("no.gif*"))


def test_a_plan_for_another_checkpoint_of_the_family_is_judged_by_this_ones_facts(host: Host) -> None:
    """Made for a model with a preset, opened on one without."""
    plan = host.resolve("tiny-wan", {"feature_cache": "teacache"})
    with pytest.raises(Refused) as caught:
        host.session(models.p1(), plan)
    assert [violation.code for violation in caught.value.refusal.violations] == ["WF-K001", "WF-K002"]


def test_a_plan_that_was_changed_is_bad_input(folder: Path) -> None:
    answer = json.loads((folder / "plan.json").read_text())
    answer["plan"]["features"][0]["options"]["threshold"] = 0.9
    (folder / "changed.json").write_text(json.dumps(answer))
    assert "it was changed" in refused(run(folder, "no.gif", "--plan", "changed.json"))


def test_a_plan_and_a_run_do_not_go_together(host: Host) -> None:
    pipe = models.p1()
    plan = host.resolve(pipe, {})
    with pytest.raises(BadInput, match="this request is a plan already"):
        host.session(pipe, plan, run={"height": 32})
