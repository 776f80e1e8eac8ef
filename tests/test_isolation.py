"""Each plugin works alone with the core, installed from built wheels, with nothing of the checkout in sight.

The wheels are built once. For each plugin the core's wheel and its own are unpacked into an empty folder, and a fresh
interpreter without site-packages runs on that folder and on a view of the third-party libraries: links to
everything in site-packages but our own distributions and the ``.pth`` files that lead to the checkout.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
MEMBERS = [
    path.parent
    for pattern in ("wf_*", "plugins/*")
    for path in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))
]
PROJECTS = [tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in MEMBERS]
# Plugin name -> its import package, and -> the wheels of ours that it asks for, itself included.
PACKAGES: dict[str, str] = {}
WHEELS: dict[str, list[str]] = {"": ["wf_core"]}
for project in PROJECTS:
    for plugin, package in project.get("entry-points", {}).get("wf.plugins", {}).items():
        needed = [
            re.match(r"[\w-]+", text).group() for text in project["dependencies"] if text.startswith("wf-")
        ]
        PACKAGES[plugin] = package
        WHEELS[plugin] = [name.replace("-", "_") for name in (project["name"], *needed)]
PLUGINS = sorted(PACKAGES)
SELECTORS = {
    "attention-provider": "attention_backend",
    "feature-cache": "feature_cache",
    "quantizer": "quantization",
    "sparse-kernel": "approximate_attention",
}


ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from wf_core.cli import main
told = []
for command in json.loads(sys.argv[1]):
    sys.argv[1:], out, err = command, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    told.append((code or 0, out.getvalue(), err.getvalue()))
print(json.dumps(told))
"""


@attrs.frozen
class Place:
    """An installation of the core and at most one plugin."""

    folder: Path
    third_party: Path

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A fresh interpreter that sees this installation, the libraries, and nothing else."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WF_"))
        }
        environment |= {
            "PYTHONPATH": f"{self.folder}{os.pathsep}{self.third_party}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [sys.executable, "-S", "-P", *arguments],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip

    def wf(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-c", "import sys; from wf_core.cli import main; sys.exit(main())", *arguments)

    def commands(self, *commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
        """Several of wf's commands in one interpreter: exit code, stdout and stderr of each."""
        done = self.python("-c", ONE_AFTER_ANOTHER, json.dumps(commands))
        assert done.returncode == 0, done.stderr
        return [tuple(row) for row in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    _pip("wheel", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), *map(str, MEMBERS))
    return folder


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to the libraries of this environment, without our own distributions and without ``.pth`` files."""
    view = tmp_path_factory.mktemp("third-party")
    for key in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(key)).iterdir():
            ours = path.name.lower().startswith(("wf_", "wf-", "_wf_", "__editable__"))
            if not ours and path.suffix != ".pth" and not (view / path.name).exists():
                (view / path.name).symlink_to(path)
    return view


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, wheels: Path, third_party: Path) -> dict[str, Place]:
    made: dict[str, Place] = {}
    for name in ["", *PLUGINS]:
        folder = tmp_path_factory.mktemp(f"alone-{name or 'core'}")
        for distribution in WHEELS[name]:
            with zipfile.ZipFile(next(wheels.glob(f"{distribution}-*.whl"))) as wheel:
                wheel.extractall(folder)
        made[name] = Place(folder, third_party)
    return made


def _pip(command: str, *arguments: str) -> None:
    quiet = ["--no-deps", "--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", command, *quiet, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def listings(places: dict[str, Place]) -> Callable[[str], dict[str, Any]]:
    """What ``wf list-plugins`` says in a place, asked once."""

    @cache
    def listing(name: str) -> dict[str, Any]:
        done = places[name].wf("list-plugins", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return listing


def test_the_core_alone_lists_nothing_and_does_not_fail(listings: Callable[[str], dict[str, Any]]) -> None:
    assert listings("")["plugins"] == []


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_alone_is_available(
    places: dict[str, Place], listings: Callable[[str], dict[str, Any]], name: str
) -> None:
    place = places[name]
    (plugin,) = listings(name)["plugins"]
    assert (plugin["name"], plugin["state"]) == (name, "available"), plugin["reason"]
    assert Path(plugin["location"]).is_relative_to(place.folder)


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_alone_imports_and_sees_no_other(places: dict[str, Place], name: str) -> None:
    package = PACKAGES[name]
    program = (
        "import importlib, importlib.util, pkgutil\n"
        f"module = importlib.import_module({package!r})\n"
        "print(module.__file__)\n"
        "for info in pkgutil.walk_packages(module.__path__, module.__name__ + '.'):\n"
        "    if '.training' not in info.name: importlib.import_module(info.name)\n"
        f"for other in {sorted(set(PACKAGES.values()) - {package})!r}:\n"
        "    assert importlib.util.find_spec(other) is None, other\n"
    )
    done = places[name].python("-c", program)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(places[name].folder)


@pytest.mark.parametrize("name", PLUGINS)
def test_features_of_a_lone_plugin_are_shown_and_resolve_or_are_refused(
    places: dict[str, Place], listings: Callable[[str], dict[str, Any]], name: str, tmp_path: Path
) -> None:
    """Exit 0 or 2 with one clear line: a missing neighbour is a reason, never a fault of the host."""
    (plugin,) = listings(name)["plugins"]
    model = next(iter(plugin["models"]), "") or str(_checkpoint(tmp_path))
    shown = [("show", feature["name"]) for feature in plugin["features"]]
    asked = [("resolve", model, "-s", request, "--json") for request in _requests(plugin)]
    *told, (code, _, plain) = places[name].commands(*shown, *asked, ("resolve", model, "--json"))
    for command, (ended, _, stderr) in zip((*shown, *asked), told, strict=True):
        assert ended in ((0,) if command in shown else (0, 2)), f"{command}: {stderr}"
        assert "Traceback" not in stderr, f"{command}: {stderr}"
    has_family = plugin["kind"] == "model-family"
    assert code == (0 if has_family else 2), plain
    assert has_family or "WanTransformer3DModel" in plain


def _requests(plugin: dict[str, Any]) -> list[str]:
    """Each feature by the selector of its kind, and each switch of its own turned on."""
    chosen = [f"{SELECTORS[f['kind']]}={f['name']}" for f in plugin["features"] if f["kind"] in SELECTORS]
    own = [f"{switch}=true" for switch in plugin["switches"] if switch not in SELECTORS.values()]
    assert chosen or own or not plugin["features"]
    return [*chosen, *own]


def _checkpoint(folder: Path) -> Path:
    """A Wan checkpoint without weights: an index, one config, and a safetensors file with an empty header."""
    (folder / "transformer").mkdir()
    index = {"_class_name": "WanPipeline", "transformer": ["diffusers", "WanTransformer3DModel"]}
    config = {
        "_class_name": "WanTransformer3DModel",
        "attention_head_dim": 64,
        "num_attention_heads": 2,
        "num_layers": 2,
        "patch_size": [1, 2, 2],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "transformer/config.json").write_text(json.dumps(config))
    header = b"{}      "
    weights = len(header).to_bytes(8, "little") + header
    (folder / "transformer/diffusion_pytorch_model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize("name", PLUGINS)
def test_wheel_holds_the_manifest_and_no_tests(wheels: Path, name: str) -> None:
    package = PACKAGES[name]
    with zipfile.ZipFile(next(wheels.glob(f"{package}-*.whl"))) as wheel:
        names = wheel.namelist()
    tops = {entry.split("/")[0] for entry in names}
    assert f"{package}/wf-plugin.toml" in names
    assert {top for top in tops if not top.endswith(".dist-info")} == {package}
