"""Installed packages that cannot be imported break neither listing nor resolving nor running, and are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wf_core.broken_packages import BrokenPackage
from wf_core.checkpoints import load_pipeline

BROKEN = {
    ("flash-attn-4", "4.0.0b36"): {"flash_attn/__init__.py": "", "flash_attn/cute/__init__.py": ""},
    ("xformers", "0.0.35"): {
        "xformers/__init__.py": "",
        "xformers/ops.py": "from flash_attn.flash_attn_interface import flash_attn_func\n",
    },
    ("torchvision", "0.26.0"): {
        "torchvision/__init__.py": "raise RuntimeError('operator torchvision::nms does not exist')\n"
    },
    ("sageattention", "2.1.1"): {"sageattention/__init__.py": "raise SystemExit('no CUDA')\n"},
}
REASONS = {
    "xformers": "ModuleNotFoundError: No module named 'flash_attn.flash_attn_interface'",
    "torchvision": "RuntimeError: operator torchvision::nms does not exist",
    "sageattention": "it exits at import (no CUDA)",
}


IN_A_RUN = {name: reason for name, reason in REASONS.items() if name != "sageattention"}
"""Each costs a run that imports diffusers anew."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them together, as installers leave them, sageattention in a folder of its own below. Whoever imports one
    says so in the file ``imported``.
    """
    top = tmp_path_factory.mktemp("site")
    note = f"open({str(top / 'imported')!r}, 'a').write(__name__ + '\\n')\n"
    for (name, version), files in BROKEN.items():
        root = top / "more" if name == "sageattention" else top
        root.mkdir(exist_ok=True)
        info = root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text(next(iter(files)).partition("/")[0] + "\n")
        for file, code in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(note + code)
    return top


def start(site: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    variables = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **environ}
    command = [sys.executable, "-m", "wf_core", *arguments]
    return subprocess.Popen(
        command,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=site,
    )


def imported(site: Path) -> list[str]:
    file = site / "imported"
    return file.read_text().split() if file.exists() else []


def test_listing_and_resolving_import_none_of_them(site: Path) -> None:
    listing = start(site, "list-plugins", "--json")
    resolving = start(site, "resolve", "tiny-wan", "-s", "attention_backend=auto", "--json")
    (listed, wrong), (plan, also_wrong) = listing.communicate(), resolving.communicate()
    assert (listing.returncode, resolving.returncode) == (0, 0), wrong + also_wrong
    states = {item["name"]: item["state"] for item in json.loads(listed)["plugins"]}
    assert states["attention-xformers"] == states["wan"] == "available"
    assert "sdpa" in plan
    assert imported(site) == []


def test_a_run_goes_on_without_them_and_says_so(site: Path) -> None:
    arguments = ["run", "tiny-wan", "--prompt", "a red 3", "--out", str(site / "clip.gif"), "--json"]
    running = start(site, *arguments, "--steps", "2", "--frames", "5")
    out, err = running.communicate()
    assert running.returncode == 0, err
    assert json.loads(out)["report"]["steps"]["forwards"]["computed"] == 4
    assert (site / "clip.gif").exists()
    warnings = sorted(line for line in err.splitlines() if line.startswith("wf: "))
    assert warnings == sorted(
        f"wf: warning: the installed package {name} {version} cannot be imported ({IN_A_RUN[name]}); "
        "it counts as not installed here"
        for name, version in BROKEN
        if name in IN_A_RUN
    )


def test_the_doctor_names_those_that_installed_plugins_ask_for(site: Path) -> None:
    """Without a model family, for which it would import diffusers and what that imports: that takes long."""
    path = os.pathsep.join([str(site), str(site / "more")])
    names = "attention-xformers,attention-flash,attention-sage"
    doctor = start(site, "doctor", "--json", WF_ONLY=names, PYTHONPATH=path)
    out, err = doctor.communicate()
    assert doctor.returncode == 0, err
    answer = json.loads(out)
    found = {item["name"]: item["reason"] for item in answer["packages"]}
    asked = {name: reason for name, reason in REASONS.items() if name != "torchvision"}
    assert found == {**asked, "flash-attn-4": ""}


def test_a_library_is_told_which_package_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xformers.py").write_text("raise RuntimeError('for another torch')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "xformers", raising=False)

    def load(*_: object, **__: object) -> None:
        import xformers  # noqa: F401

    monkeypatch.setattr("diffusers.DiffusionPipeline.from_pretrained", load)
    with pytest.raises(
        BrokenPackage, match=r"the installed package xformers cannot be imported .*uninstall"
    ) as e:
        load_pipeline(tmp_path)
    assert e.value.package == "xformers"
    assert "xformers" not in sys.modules  # nothing is hidden from a library's user
