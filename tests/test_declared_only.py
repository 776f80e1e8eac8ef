"""What is declared and not implemented: judged like everything else, and refused before anything is touched."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import models
from support.plugins import write_plugin
from wf_core import Host, Refused
from wf_core.testing.toy import trial as toy


def violations(refused: pytest.ExceptionInfo[Refused]) -> list[tuple[str, tuple[str, ...]]]:
    return [(violation.code, violation.involves) for violation in refused.value.refusal.violations]


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying a base, and importing a plugin, would fail."""

    def touched(*arguments: object, **named: object) -> None:
        raise AssertionError("a refusal has touched something")

    monkeypatch.setattr("wf_core.sessions.session.Witness", touched)
    monkeypatch.setattr("wf_core.sessions.session.open_copy", touched)
    monkeypatch.setattr("wf_core.host.load_plugin", touched)


@pytest.mark.usefixtures("untouched")
def test_a_session_with_a_declared_feature_is_refused(host: Host) -> None:
    pipe = models.p1()
    plan = host.resolve(pipe, {"compile": True, "attention_backend": "sdpa"})
    assert plan.not_activatable == ("compile",)
    for request in (plan, {"compile": True, "attention_backend": "sdpa"}):
        with pytest.raises(
            Refused, match="compile of execution-compile cannot be activated: not implemented"
        ) as e:
            host.session(pipe, request)
        assert violations(e) == [("WF-P002", ("compile", "compile"))]


@pytest.mark.usefixtures("untouched")
def test_every_declared_feature_is_named(host: Host) -> None:
    with pytest.raises(Refused) as refused:
        host.session(models.p1(), {"compile": True, "quantization": "int8"})
    assert sorted(violations(refused)) == [
        ("WF-P002", ("compile", "compile")),
        ("WF-P002", ("quantization", "int8")),
    ]


LATER = """
kind = "model-family"
summary = "A family that is declared, of the toy's class"

[family]
name = "later"
state = "unavailable: not implemented"
seams = ["denoiser"]
transformer_classes = { ToyTransformer = "later" }
"""


@pytest.mark.usefixtures("untouched")
def test_a_model_of_a_declared_family_is_refused(host_with: Callable[..., Host]) -> None:
    host = host_with(lambda root: write_plugin(root, "later", LATER, ""))
    base = toy.pipeline()
    plan = host.resolve(base, {})
    assert plan.not_activatable == ("later",)
    with pytest.raises(Refused, match="the family later cannot be opened yet, only judged") as refused:
        host.session(base, plan)
    assert violations(refused) == [("WF-M007", ("family", "later"))]


def test_after_a_refusal_the_base_opens_as_before(host: Host) -> None:
    pipe = models.p1()
    with pytest.raises(Refused):
        host.session(pipe, {"compile": True})
    with host.session(pipe, {"attention_backend": "sdpa"}) as session:
        assert session.pipe(**models.call(num_inference_steps=1)).frames is not None


# --- the command line -------------------------------------------------------------------------------------------------


def wf(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\n"
        "import wf_core.checkpoints as checkpoints\n"
        "def load(*a, **k): raise SystemExit('weights were read')\n"
        "checkpoints.load_quietly = load\n"
        "from wf_core.cli import main\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["-s", "compile=true"], "WF-P002 compile of execution-compile cannot be activated"),
        (["-s", "attention_backend=flash2"], "WF-A020"),
        ([], ""),
    ],
)
def test_wf_run_is_refused_before_weights_are_read(tmp_path: Path, settings: list[str], words: str) -> None:
    small = ("--height", 32, "--width", 32, "--frames", 5, "--steps", 1)
    done = wf("run", "tiny-wan", "--prompt", "x", "--out", "clip.mp4", *small, *settings, cwd=tmp_path)
    if not settings:
        assert "weights were read" in done.stderr, "without what is refused they would be"
        return
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"wf: refused: {words}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_wf_resolve_judges_and_says_that_it_cannot_be_activated(tmp_path: Path) -> None:
    asked = ("resolve", "wan2.1-t2v-1.3b", "-s", "compile=true", "--device", "h200")
    answer = json.loads(wf(*asked, "--json", cwd=tmp_path).stdout)
    assert (answer["legal"], answer["not_activatable"]) == (True, ["compile"])
    assert "judged only, cannot be activated: compile" in wf(*asked, cwd=tmp_path).stdout
