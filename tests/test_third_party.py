"""A plugin of somebody else: built outside the repository, installed with pip beside wf-core alone, used, taken out."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
USE = """
import json, sys
from wf_core import Refused
from wf_core.testing import host_of
from wf_core.testing.toy.trial import bench

plugins = ["wf_core.testing.toy", *sys.argv[1:]]
host, bench = host_of(*plugins), bench()
pipe = bench.pipeline()
plain = pipe(**bench.arguments()).frames
try:
    with host.session(pipe, {"mine": True}, verify_contents=True) as session:
        session.pipe(**bench.arguments())
        answer = {"state": session.report["effective"]["mine"]["state"]}
except Refused as refused:
    answer = refused.refusal.to_json()
answer["base_is_as_before"] = bool((pipe(**bench.arguments()).frames == plain).all())
print(json.dumps(answer))
"""


class Environment:
    """A virtual environment with the third-party packages of this one, and no distribution of this project."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "environment", with_pip=True)
        self.python = folder / "environment" / "bin" / "python"
        self.cwd = folder
        borrowed = folder / "borrowed"
        borrowed.mkdir()
        for place in [Path(path) for path in sys.path if path.endswith("site-packages")]:
            for item in place.iterdir():
                ours = item.name.lower().startswith(("wf_", "wf-", "__editable__", "_wf", "pip"))
                if not ours and item.suffix != ".pth" and not (borrowed / item.name).exists():
                    (borrowed / item.name).symlink_to(item)
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        (Path(self("-c", code).strip()) / "borrowed.pth").write_text(f"{borrowed}\n")

    def __call__(self, *arguments: object, code: int = 0) -> str:
        done = subprocess.run(
            [self.python, *map(str, arguments)], cwd=self.cwd, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def wf(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self("-m", "wf_core", *arguments, "--json", code=code))


def built(source: Path, into: Path) -> Path:
    command = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", into, source)
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True, timeout=280)
    [wheel] = into.glob(f"{source.name.replace('-', '_')}-*.whl")
    return wheel


@pytest.mark.slow
def test_a_plugin_from_its_wheel_beside_wf_core_alone(tmp_path: Path) -> None:
    environment, wheels = Environment(tmp_path), tmp_path / "wheels"
    install = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps")
    environment(*install, built(ROOT / "wf_core", wheels))
    assert environment.wf("list-plugins")["plugins"] == []

    environment("-m", "wf_core", "new-plugin", "mine", "--kind", "fusion")
    environment(*install, built(tmp_path / "wf-plugin-mine", wheels))
    [listed] = environment.wf("list-plugins")["plugins"]
    assert (listed["name"], listed["state"], listed["switches"]) == ("mine", "available", ["mine"])
    assert str(tmp_path / "environment") in listed["location"]
    checked = environment.wf("check", "mine")
    assert checked["conforms"] and sum(check["state"] == "passed" for check in checked["checks"]) >= 12
    assert (
        environment.wf("resolve", "wan2.1", "--family", "wan", "-s", "mine=true", code=2)["violations"][0][
            "code"
        ]
        == "WF-M002"
    ), "there is no model family yet, and that is the only reason"
    used = json.loads(environment("-c", USE, "wf_plugin_mine"))
    assert used == {"state": "effective", "base_is_as_before": True}

    environment("-m", "pip", "uninstall", "--quiet", "--yes", "wf-plugin-mine")
    assert environment.wf("list-plugins")["plugins"] == []
    gone = json.loads(environment("-c", USE))
    [violation] = gone["violations"]
    assert (violation["code"], violation["involves"]) == ("WF-R001", ["mine"])
    assert "pip install" in violation["fix"]
    assert gone["base_is_as_before"]
