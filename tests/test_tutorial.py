"""docs/authors/tutorial.md as a stranger follows it: files are written, commands are run, outputs are compared."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import attrs
import pytest

from support.pages import Block, agrees, blocks, commands

PAGE = Path(__file__).parents[1] / "docs" / "authors" / "tutorial.md"
WHEEL = "dist/wf_plugin_attention_mine-1.0-py3-none-any.whl"
SHOWN_WIDTH = "100"

# How commands are run. The environment is a new one in a temporary folder, which sees what is installed for this
# interpreter; what a plugin's author installs goes into the new one. No network.
#
#   make setup, . .venv/bin/activate   left out: this interpreter and its packages are what they make
#   pip install build twine            left out: they come from an index
#   pip install ...                    as it stands, with --no-index --no-deps --no-build-isolation; by name from dist/
#   python -m build                    python -m hatchling build: the backend that it would call, without isolation
#   twine check, twine upload          the built files are looked at instead
#   pytest, wf check                   without the Wan family: they run on the toy family, which is quicker
#   wf ...                             as it stands, by this interpreter: python -m wf_core
#
# What a command prints is what it prints on a terminal, stdout and stderr together.
LEFT_OUT = ("make setup", ". .venv/bin/activate", "pip install build twine")
OFFLINE = "--no-index --no-deps --no-build-isolation --disable-pip-version-check --quiet"


@attrs.define
class Shell:
    """Runs the commands of the page, one after another."""

    folder: Path
    bin: Path
    hidden: Path
    ran: list[str] = attrs.field(factory=list)

    def run(self, line: str) -> str:
        """What a command prints, stdout and stderr together."""
        self.ran.append(line)
        if line in LEFT_OUT:
            return ""
        if line.startswith("cd "):
            self.folder /= line.removeprefix("cd ")
            return ""
        if line.startswith("twine "):
            _look_into(self.folder)
            return ""
        done = subprocess.run(
            ["/bin/sh", "-c", _mapped(line)],
            cwd=self.folder,
            env=self._environment(line),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=250,
        )
        assert done.returncode == _code(line), f"$ {line}\n{done.stdout}"
        return done.stdout

    def _environment(self, line: str) -> dict[str, str]:
        env = {**os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "COLUMNS": SHOWN_WIDTH}
        if line.startswith("pytest"):
            env["PYTHONPATH"] = str(self.hidden)
        if line.startswith("wf check"):
            env["WF_BLOCK"] = "wan"
        return env


def _mapped(line: str) -> str:
    if line.startswith("pip install"):
        by_name = (
            "--find-links dist --force-reinstall "
            if line.endswith("install wf-plugin-attention-mine")
            else ""
        )
        return line.replace("pip install", f"pip install {OFFLINE} {by_name}")
    return {"python -m build": "python -m hatchling build"}.get(line, line)


def _code(line: str) -> int:
    return 2 if "wf resolve" in line else 0


def _look_into(folder: Path) -> None:
    """Everything that an index and a user need is in what would be uploaded."""
    assert {path.suffix for path in (folder / "dist").iterdir()} == {".whl", ".gz"}
    with zipfile.ZipFile(folder / WHEEL) as wheel:
        names = wheel.namelist()
        assert {
            f"wf_plugin_attention_mine/{name}" for name in ("__init__.py", "attention.py", "wf-plugin.toml")
        } <= {*names}
        metadata = wheel.read("wf_plugin_attention_mine-1.0.dist-info/METADATA").decode()
        points = wheel.read("wf_plugin_attention_mine-1.0.dist-info/entry_points.txt").decode()
    assert "License-Expression: MIT" in metadata and "for checking results on a CPU" in metadata
    assert "attention-mine = wf_plugin_attention_mine" in points


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    root = tmp_path / "environment"
    venv.create(root, with_pip=False)
    binaries = root / "bin"
    found = subprocess.run(
        [binaries / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ours = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in ours]
    (Path(found.stdout.strip()) / "ours.pth").write_text("\n".join(lines) + "\n")
    for name, module in (("wf", "wf_core"), ("pip", "pip"), ("pytest", "pytest -p no:cacheprovider")):
        script = binaries / name
        script.write_text(f'#!/bin/sh\nexec "{binaries}/python" -m {module} "$@"\n')
        script.chmod(0o755)
    hidden = tmp_path / "hidden" / "wf_plugin_wan"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text('raise ImportError("hidden by the test")\n')
    home = tmp_path / "home"
    home.mkdir()
    return Shell(home, binaries, hidden.parent)


def _write(block: Block, folder: Path) -> None:
    path = folder / block.file
    assert path.parent.is_dir(), f"{block.file}: the page has not made its folder"
    assert not path.exists()
    path.write_text(block.text, encoding="utf-8")


@pytest.mark.slow
def test_the_tutorial_is_right_word_for_word(shell: Shell) -> None:
    wrong = []
    for block in blocks(PAGE):
        if block.language == "console":
            for command in commands(block):
                printed = shell.run(command.line)
                if not agrees(command.shown, printed):
                    wrong.append(
                        f"line {block.line}: $ {command.line}\nprints\n{printed}\nnot\n{command.shown}"
                    )
        else:
            assert block.file, f"line {block.line}: a block that is neither a file nor commands"
            _write(block, shell.folder)
    assert not wrong, "\n\n".join(wrong)
    for line in LEFT_OUT:
        assert line in shell.ran, f"the page does not say {line!r} any more"
