"""``wf doctor`` on optional packages: each is imported in a child, by the module that proves it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from wf_core.cli.package_probe import flaw, probe
from wf_core.cli.packages import Package, installed_packages
from wf_core.cli.probing import probe_all
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover

from .conftest import Site
from .test_cli_doctor import doctor
from .toy_features import NEEDS

CODE = {
    "toy-fine": "print('hello')\n",
    "toy-raises": "raise RuntimeError('operator toy::nms\\ndoes not exist')\n",
    "toy-exits": "raise SystemExit('no CUDA')\n",
    "toy-ends": "import os\nos._exit(7)\n",
    "toy-slow": "import time\ntime.sleep(60)\n",
}


def installed(site: Site, distribution: str, version: str = "1.0") -> Path:
    """Its metadata folder, named as installers name them."""
    return site.metadata(distribution.replace("-", "_"), "", version, name=distribution)


def package(site: Site, distribution: str, code: str, module: str = "") -> None:
    """An installed package whose metadata lists its module."""
    module = module or distribution.replace("-", "_")
    site.module(module, code)
    (installed(site, distribution, "2.0") / "top_level.txt").write_text(module + "\n")


def needing(site: Site, *distributions: str) -> None:
    """A plugin with one feature for each package."""
    for name in distributions:
        more = NEEDS.format(fact=f"package.{name}", test="present = true", reason=f"no {name}")
        site.cache(f"cache-{name}", feature=name, more=more)


def test_the_doctor_imports_what_conditions_name_and_says_why_not(site: Site) -> None:
    for name, code in CODE.items():
        package(site, name, code)
    needing(site, *CODE, "toy-absent")
    done = doctor(
        site, "--json", "--seconds", "4", only=",".join(f"cache-{n}" for n in (*CODE, "toy-absent"))
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = {item["name"]: item for item in answer["packages"]}
    assert {name: item["reason"] for name, item in found.items()} == {
        "toy-fine": "",
        "toy-raises": "RuntimeError: operator toy::nms does not exist",
        "toy-exits": "it exits at import (no CUDA)",
        "toy-ends": "its import ends the process with exit code 7",
        "toy-slow": "its import takes longer than 4 s",
    }
    assert found["toy-fine"] == {
        "name": "toy-fine",
        "version": "2.0",
        "modules": ["toy_fine"],
        "imports": True,
        "reason": "",
    }
    here = {item["name"]: (item["here"], item["reason"]) for item in answer["features"]}
    assert here["toy-fine"] == ("yes", "")
    assert here["toy-exits"] == ("no", "toy-exits 2.0 cannot be imported: it exits at import (no CUDA)")
    assert here["toy-absent"] == ("no", "no toy-absent (it is none)")


def test_the_doctor_prints_the_packages_as_a_table(site: Site) -> None:
    package(site, "toy-fine", "")
    needing(site, "toy-fine")
    lines = doctor(site, only="cache-toy-fine").stdout.splitlines()
    assert ["toy-fine", "2.0", "yes"] in [line.split() for line in lines]


def test_packages_of_plugins_that_are_left_out_are_not_imported(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(site, "toy-fine", "")
    needing(site, "toy-fine")
    monkeypatch.setattr(sys, "path", [str(site.folder)])
    assert [found.name for found in installed_packages(Catalog.of(discover()))] == ["toy-fine"]
    monkeypatch.setenv("WF_BLOCK", "cache-toy-fine")
    assert installed_packages(Catalog.of(discover())) == ()


@pytest.mark.parametrize(
    ("distribution", "files", "modules"),
    [
        ("toy-kernel", {"top_level.txt": "_private\ntoy_kernel\ntoy_other\n"}, ("toy_kernel",)),
        ("toy-kernel", {"top_level.txt": "b\na\n_c\n"}, ("a", "b")),
        (
            "toy-kernel",
            {"RECORD": "inner/a.py,,\ninner/b.so,,\nlone.py,,\nx-1.data/s.py,,\n"},
            ("inner", "lone"),
        ),
        ("toy-kernel", {}, ()),
        ("flash_attn_4", {"top_level.txt": "flash_attn\n"}, ("flash_attn.cute",)),
        ("xformers", {"top_level.txt": "xformers\n"}, ("xformers.ops",)),
    ],
)
def test_the_module_that_proves_a_distribution(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    distribution: str,
    files: dict[str, str],
    modules: tuple[str, ...],
) -> None:
    folder = installed(site, distribution)
    for name, text in files.items():
        (folder / name).write_text(text)
    needing(site, distribution)
    monkeypatch.setattr(sys, "path", [str(site.folder)])
    [found] = installed_packages(Catalog.of(discover()))
    assert found.modules == modules


def test_a_package_that_imports_without_its_kernels_is_broken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xformers logs that its C++ part was built for another torch, and goes on."""
    folder = site.module("xformers")
    (folder / "ops.py").write_text("import xformers._cpp_lib\n")
    (folder / "_cpp_lib.py").write_text("_cpp_library_load_exception = OSError('undefined symbol')\n")
    monkeypatch.syspath_prepend(str(site.folder))
    for name in ("xformers", "xformers.ops", "xformers._cpp_lib"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        found = probe(["xformers.ops"])
        assert found["reason"] == "its C++ part does not load: undefined symbol"
        assert found["loaded"]["xformers.ops"] == found["reason"]
        sys.modules["xformers._cpp_lib"]._cpp_library_load_exception = None  # type: ignore[attr-defined]
        assert flaw("xformers.ops") == ""
    finally:
        for name in ("xformers", "xformers.ops", "xformers._cpp_lib"):
            sys.modules.pop(name, None)


def test_what_came_with_diffusers_has_no_child_of_its_own(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stand-ins: what the first one imports is proven by it, and its fault is laid to what is broken."""
    marker = tmp_path / "marker"
    site.module("toy_inner", f"open({str(marker)!r}, 'a').write('x')\n")
    site.module("toy_broken", "raise RuntimeError('no')\n")
    site.module("toy_models", "import toy_inner\nimport toy_broken\n")
    monkeypatch.setenv("PYTHONPATH", str(site.folder))
    inner, broken = Package("toy-inner", "1", ("toy_inner",)), Package("toy-broken", "1", ("toy_broken",))
    _, found = probe_all([], [Package("Diffusers", "1", ("toy_models",)), inner, broken], 30.0, 2)
    assert marker.read_text() == "x"
    assert [probed.reason for probed in found] == [
        "RuntimeError: no (because of toy-broken; runs count it as not installed)",
        "",
        "RuntimeError: no",
    ]
