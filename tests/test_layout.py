"""The repository is laid out as docs/architecture.md says: every plugin can be found, built and installed alone."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
KIND_OF_FOLDER = {
    "attention": "attention-provider",
    "cache": "feature-cache",
    "sparse": "sparse-kernel",
    "quant": "quantizer",
    "vae": "vae-decoder",
    "parallel": "parallel-strategy",
    "placement": "placement",
    "execution": "execution-mode",
    "fused": "fusion",
    "adapter": "adapter",
    "model": "model-source",
}
FAMILIES = sorted(path.name for path in ROOT.glob("wf_plugin_*") if path.is_dir())
PLUGINS = sorted(
    path.name
    for path in (ROOT / "plugins").iterdir()
    if path.is_dir() and not path.name.startswith(("lib-", "."))
)
MEMBERS = ["wf_core", *FAMILIES, *(f"plugins/{name}" for name in PLUGINS)]
WITH_MANIFEST = MEMBERS[1:]
LIBRARIES = sorted(path.name for path in (ROOT / "plugins").glob("lib-*"))
MOST_LINES = 400
# Spelled in pieces, so that this file does not contain what it forbids.
PRIVATE_PATH = re.compile(r"(^|[^A-Za-z.])/(" + "|".join(("wo" + "rk", "fa" + "rm", "tm" + "p")) + ")/")


def project(member: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / member / "pyproject.toml").read_text())


def package_of(member: str) -> str:
    """plugins/cache-teacache -> wf_plugin_cache_teacache; wf_plugin_wan and wf_core are their own."""
    folder = member.removeprefix("plugins/")
    return folder if folder == member else "wf_plugin_" + folder.replace("-", "_")


def plugin_name(member: str) -> str:
    """The plugin's name is its folder's; that of a family is what follows wf_plugin_."""
    return member.removeprefix("plugins/").removeprefix("wf_plugin_")


def manifest(member: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / member / "src" / package_of(member) / "wf-plugin.toml").read_text())


def tracked() -> list[Path]:
    """What is, or is about to be, in version control."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("member", MEMBERS)
def test_member_has_its_parts(member: str) -> None:
    package = f"src/{package_of(member)}"
    wanted = ["pyproject.toml", "README.md", f"{package}/__init__.py", "tests"]
    wanted += [f"{package}/wf-plugin.toml"] if member in WITH_MANIFEST else []
    assert [name for name in wanted if not (ROOT / member / name).exists()] == []
    assert sorted(path.name for path in (ROOT / member / "src").iterdir()) == [package_of(member)]
    assert list((ROOT / member / "tests").glob("test_*.py")), "no tests"


@pytest.mark.parametrize("member", MEMBERS)
def test_member_is_built_alike(member: str) -> None:
    data = project(member)
    assert data["build-system"]["build-backend"] == "hatchling.build"
    assert set(data.get("tool", {})) <= {"hatch"}, "tool settings belong in the root's pyproject.toml"
    assert data["project"]["requires-python"] == project("wf_core")["project"]["requires-python"]
    assert data["project"]["license"] == "Apache-2.0"
    assert data["project"]["name"] == package_of(member).replace("_", "-")


@pytest.mark.parametrize("member", WITH_MANIFEST)
def test_plugin_depends_on_one_range_of_the_core_and_on_no_other_plugin(member: str) -> None:
    ours = [text for text in project(member)["project"]["dependencies"] if text.startswith("wf")]
    ours = [text for text in ours if not text.startswith("wf-lib-")]
    assert len(ours) == 1, ours
    assert re.fullmatch(r"wf-core\s*(>=[\d.]+\s*,\s*<[\d.]+|~=[\d.]+)", ours[0]), f"not a range: {ours[0]}"


def test_all_plugins_ask_for_the_same_range_of_the_core() -> None:
    ranges = {
        text.replace(" ", "")
        for member in WITH_MANIFEST
        for text in project(member)["project"]["dependencies"]
        if text.startswith("wf-core")
    }
    assert len(ranges) == 1, ranges


@pytest.mark.parametrize("member", WITH_MANIFEST)
def test_plugin_has_exactly_one_entry_point_named_after_its_folder(member: str) -> None:
    groups = project(member)["project"]["entry-points"]
    assert groups == {"wf.plugins": {plugin_name(member): package_of(member)}}


@pytest.mark.parametrize("member", WITH_MANIFEST)
def test_manifest_agrees_with_the_folder(member: str) -> None:
    data = manifest(member)
    assert data["name"] == plugin_name(member)
    folder_kind = (
        "model-family" if member in FAMILIES else KIND_OF_FOLDER[plugin_name(member).split("-", 1)[0]]
    )
    assert data["kind"] == folder_kind


def test_import_contracts_name_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts = {contract["id"]: contract for contract in settings["contracts"]}
    packages = {package_of(member) for member in MEMBERS}
    libraries = {"wf_" + name.replace("-", "_") for name in LIBRARIES}
    assert set(settings["root_packages"]) == packages | libraries
    assert set(contracts["core-knows-no-plugin"]["forbidden_modules"]) == packages - {"wf_core"} | libraries
    assert set(contracts["plugins-are-strangers"]["modules"]) == packages - {"wf_core"}


@pytest.mark.parametrize("member", [*MEMBERS, *(f"plugins/{name}" for name in LIBRARIES)])
def test_modules_are_short(member: str) -> None:
    modules = (ROOT / member / "src").rglob("*.py")
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules}
    assert {name: count for name, count in lines.items() if count >= MOST_LINES} == {}


def test_no_file_names_a_path_of_one_machine() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and pictures
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if PRIVATE_PATH.search(line)
        ]
    assert found == []
