"""``wf new-plugin``: what it writes is complete, works as it is written, and passes its own conformance tests."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from packaging.specifiers import SpecifierSet

from wf_core import __version__
from wf_core.cli import main
from wf_core.manifests.manifest import Manifest
from wf_core.templates import distribution
from wf_core.templates.distribution import KINDS, NewPlugin
from wf_core.testing.conformance import CLASSES

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("mine", "x", "a-name-as-long-as-one-may-be-1")
COMMON = {"LICENSE", "README.md", "pyproject.toml", "tests/test_conformance.py"}
OF_PACKAGE = {
    "attention-provider": {"attention.py"},
    "sparse-kernel": {"window.py"},
    "feature-cache": {"interval.py"},
    "vae-decoder": {"decoder.py"},
    "fusion": {"residual.py"},
    "execution-mode": {"mode.py"},
    "model-family": {"family.py", "model.py", "trial.py"},
    "model-source": {"checkpoint.py"},
}


def wf(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)


def made(kind: str, parent: Path, name: str = "mine") -> Path:
    result = wf("new-plugin", name, "--kind", kind, "--out", parent)
    assert result.exit_code == 0, result.output
    return parent / f"wf-plugin-{name}"


def package(folder: Path) -> Path:
    return folder / "src" / folder.name.replace("-", "_")


def in_a_process(*arguments: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    env = {**os.environ, **environ}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=280)


def without_wan(folder: Path) -> str:
    """A folder for PYTHONPATH in which the Wan family cannot be imported: the toy family is left, and is quicker."""
    stub = folder / "without" / "wf_plugin_wan" / "__init__.py"
    stub.parent.mkdir(parents=True)
    stub.write_text('raise ImportError("hidden by the test")\n')
    return str(stub.parents[1])


# --- what is written ---------------------------------------------------------------------------------------------


def test_there_is_a_template_for_every_kind_that_can_be_tested() -> None:
    assert set(KINDS) == set(CLASSES) == set(OF_PACKAGE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_there_and_filled_in(kind: str, tmp_path: Path) -> None:
    folder = made(kind, tmp_path)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    wanted = {f"src/wf_plugin_mine/{name}" for name in OF_PACKAGE[kind] | {"__init__.py", "wf-plugin.toml"}}
    more = {"tests/conftest.py"} if kind == "model-source" else set()
    assert found == COMMON | wanted | more
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    for name in found:
        text = (folder / name).read_text(encoding="utf-8")
        assert not re.search(r"\$(\{?[a-z_]|\$)", text), name
        assert text.endswith("\n") and not text.endswith("\n\n"), name


@pytest.mark.parametrize("kind", KINDS)
def test_project_and_manifest_agree(kind: str, tmp_path: Path) -> None:
    folder = made(kind, tmp_path)
    manifest = Manifest.load(package(folder) / "wf-plugin.toml")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    core = tomllib.loads((ROOT / "wf_core" / "pyproject.toml").read_text())["project"]
    assert (manifest.name, manifest.kind, manifest.api) == ("mine", kind, 1)
    assert project["name"] == "wf-plugin-mine"
    assert project["description"] == manifest.summary
    assert project["entry-points"] == {"wf.plugins": {"mine": "wf_plugin_mine"}}
    assert project["requires-python"] == core["requires-python"]
    assert {need for need in core["dependencies"] if need.startswith("torch")} < set(project["dependencies"])
    [needs] = [need for need in project["dependencies"] if need.startswith("wf-core")]
    assert __version__ in SpecifierSet(needs.removeprefix("wf-core"))
    assert project["optional-dependencies"]["test"] == [needs.replace("wf-core", "wf-core[testing]")]
    test = (folder / "tests" / "test_conformance.py").read_text()
    assert f"class TestConformance({CLASSES[kind].__name__}):" in test


@pytest.mark.parametrize(
    ("version", "wanted"), [("0.1.0", ">=0.1,<0.2"), ("0.12.3", ">=0.12,<0.13"), ("2.4.0", ">=2.4,<3")]
)
def test_a_new_plugin_asks_for_the_core_it_was_made_with(
    version: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution, "__version__", version)
    assert distribution.core_range() == wanted


def test_the_code_imports_what_plugins_may_and_is_formatted(tmp_path: Path) -> None:
    """Whatever the length of the name, by ruff's own rules and by this repository's."""
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        for name in NAMES:
            folder = made(kind, tmp_path / kind, name)
            own = package(folder).name
            for path in folder.rglob("*.py"):
                door = "wf_core.testing" if "tests" in path.parts else "wf_core.api"
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wf_"):
                        assert node.module == door or (node.module or "").startswith(f"{own}."), path
    ours = tmp_path / "pyproject.toml"
    ours.write_text(
        (ROOT / "pyproject.toml")
        .read_text()
        .replace('known-first-party = ["wf_core"]', 'known-first-party = ["wf_plugin_*"]')
    )
    for command in (["check"], ["format", "--check"], ["check", "--config", str(ours)]):
        done = in_a_process("-m", "ruff", *command, "--no-cache", ".", cwd=tmp_path)
        assert done.returncode == 0, done.stdout


def test_the_answer_says_what_was_written(tmp_path: Path) -> None:
    result = wf("new-plugin", "mine", "--kind", "fusion", "--out", tmp_path, "--json")
    answer = json.loads(result.stdout)
    folder = Path(answer["path"])
    assert folder == tmp_path / "wf-plugin-mine"
    assert (answer["distribution"], answer["package"]) == ("wf-plugin-mine", "wf_plugin_mine")
    assert sorted(answer["files"]) == sorted(NewPlugin("mine", "fusion").files())
    assert all((folder / name).is_file() for name in answer["files"])
    shown = wf("new-plugin", "other", "--kind", "fusion", "--out", tmp_path).stdout
    assert str(tmp_path / "wf-plugin-other" / "pyproject.toml") in shown.splitlines()
    assert "waits for a year and an author" in shown


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("My_Cache", "write my-cache"),
        ("a..b", "write a-b"),
        ("wf-plugin-mine", "leave 'wf-plugin-' out"),
        ("WF.Plugin.mine", "leave 'wf-plugin-' out"),
        ("", "no name of a plugin"),
        ("-mine", "no name of a plugin"),
        ("3d", "no name of a plugin"),
        ("a b", "no name of a plugin"),
        ("mine\n", "no name of a plugin"),
        ("../mine", "no name of a plugin"),
        ("größe", "no name of a plugin"),
        pytest.param("m" * 100_000, "longer than 30 characters", id="long"),
        ("toy", "family of the conformance tests"),
        ("cache-teacache", "the plugin cache-teacache of wf-plugin-cache-teacache"),
        ("teacache", "the feature teacache of wf-plugin-cache-teacache"),
        ("auto", "a value that asks for it"),
        ("torch-flash", "the feature torch-flash"),
        ("allow-uncalibrated", "a request key"),
        ("tiny-wan", "a model or a model family"),
        ("none", "turns something off"),
    ],
)
def test_a_bad_name_is_one_line(name: str, says: str, tmp_path: Path) -> None:
    result = wf("new-plugin", "--kind", "feature-cache", "--out", tmp_path, "--", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr and result.stderr.count("\n") == 1 and len(result.stderr) < 400
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "kind", ["quantizer", "feature_cache", "", "common", "../fusion", pytest.param("x" * 100_000, id="long")]
)
def test_a_kind_without_a_template_is_one_line_that_names_those_there_are(kind: str, tmp_path: Path) -> None:
    result = wf("new-plugin", "mine", "--kind", kind, "--out", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert all(known in result.stderr for known in KINDS)
    assert result.stderr.count("\n") == 1 and len(result.stderr) < 400
    assert list(tmp_path.iterdir()) == []


def _folder(target: Path) -> None:
    target.mkdir()


def _link_to_nowhere(target: Path) -> None:
    target.symlink_to(target.parent / "nowhere")


@pytest.mark.parametrize("there", [_folder, Path.touch, _link_to_nowhere])
def test_nothing_is_written_over(there: Callable[[Path], Any], tmp_path: Path) -> None:
    there(tmp_path / "wf-plugin-mine")
    result = wf("new-plugin", "mine", "--kind", "fusion", "--out", tmp_path)
    assert result.exit_code == 2
    assert "it is there already" in result.stderr and result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["wf-plugin-mine"]
    assert not (tmp_path / "wf-plugin-mine" / "README.md").exists()


@pytest.mark.parametrize("where", ["not-there", "a-file", "a-file/below"])
def test_a_place_that_is_no_folder_is_one_line(where: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    result = wf("new-plugin", "mine", "--kind", "fusion", "--out", tmp_path / where)
    assert result.exit_code == 2
    assert "is no folder; make it first" in result.stderr and result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.parametrize("step", ["mkdir", "write_text", "rename"])
def test_what_cannot_be_finished_leaves_nothing(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, step, full)
    result = wf("new-plugin", "mine", "--kind", "fusion", "--out", tmp_path)
    monkeypatch.undo()
    assert result.exit_code == 2
    assert "wf-plugin-mine: No space left on device" in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- what it does ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_conformance_tests(kind: str, tmp_path: Path) -> None:
    folder = made(kind, tmp_path)
    path = os.pathsep.join([str(folder / "src"), without_wan(tmp_path)])
    done = in_a_process(
        *("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"), cwd=folder, PYTHONPATH=path
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed, skipped = (int(found[1]) if (found := re.search(rf"(\d+) {word}", done.stdout)) else 0
                       for word in ("passed", "skipped"))  # fmt: skip
    assert passed >= 8 and skipped <= 4, done.stdout


@pytest.mark.slow
def test_an_installed_plugin_is_seen_until_it_is_removed(tmp_path: Path) -> None:
    """A wheel, in a folder of its own: listed, checked, resolved; without it its switch is no key."""
    folder, site = made("fusion", tmp_path), tmp_path / "site"
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path / "dist",
        folder,
    ]
    done = in_a_process(*build, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "dist").iterdir()
    done = in_a_process("-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    def seen(*arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
        done = in_a_process(
            "-m", "wf_core", *arguments, "--json", cwd=tmp_path, PYTHONPATH=str(site), **environ
        )
        return done.returncode, json.loads(done.stdout)

    _, listing = seen("list-plugins")
    assert [p["state"] for p in listing["plugins"] if p["name"] == "mine"] == ["available"]
    code, checked = seen("check", "mine", WF_ONLY="mine")
    assert (code, checked["conforms"]) == (0, True), checked
    code, resolved = seen("resolve", "tiny-wan", "-s", "mine=true")
    assert (code, resolved["legal"]) == (0, True)
    for left in sorted(site.rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()
    code, refused = seen("resolve", "tiny-wan", "-s", "mine=true")
    assert code == 2
    assert "mine" in json.dumps(refused) and "WF-R" in json.dumps(refused)


@pytest.mark.slow
def test_a_new_model_runs_where_its_family_is_installed(tmp_path: Path) -> None:
    folder = made("model-source", tmp_path)
    site = package(folder).parent
    info = site / "wf_plugin_mine-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wf-plugin-mine\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[wf.plugins]\nmine = wf_plugin_mine\n")
    done = in_a_process(
        *("-m", "wf_core", "run", "mine", "--prompt", "a cat", "--steps", 2, "--out", "clip.gif"),
        cwd=tmp_path,
        PYTHONPATH=str(site),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "clip.gif").stat().st_size > 0
    [checkpoint] = (tmp_path / "cache" / "wf-plugin-mine").iterdir()
    assert checkpoint.name == "mine-1" and (checkpoint / "model_index.json").is_file()


@pytest.mark.slow
def test_a_new_model_is_built_alike_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from wf_core.checkpoints import checkpoint_hash

    folder = made("model-source", tmp_path, "mine-built-here")
    monkeypatch.syspath_prepend(str(package(folder).parent))
    from wf_plugin_mine_built_here import checkpoint  # type: ignore[import-not-found]

    def failing() -> Any:
        raise MemoryError

    random = torch.get_rng_state()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(checkpoint, "pipeline", failing)
        checkpoint.directory("m")
    assert list((tmp_path / "one" / "wf-plugin-mine-built-here").iterdir()) == []
    one = checkpoint.directory("m")
    assert checkpoint.directory("m") == one
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    assert checkpoint_hash(checkpoint.directory("m")) == checkpoint_hash(one)
    assert torch.equal(torch.get_rng_state(), random)
    assert sum(path.stat().st_size for path in one.rglob("*") if path.is_file()) < 2**20


@pytest.mark.slow
def test_the_templates_are_in_the_wheel(tmp_path: Path) -> None:
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ROOT / "wf_core",
    ]
    done = in_a_process(*build, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.iterdir()
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "wf_core" / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for folder in ("templates", "testing/toy")
        for path in (source / "wf_core" / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted and wanted <= packed
