"""What the sources may not do: read code as data. And what commands may not do: leave anything behind."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.plugins import write_plugin

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for path in ROOT.glob("**/*.py")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "code",
    "pty",
}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.startfile", "builtins.eval", "builtins.exec",
    "runpy.run_path", "runpy.run_module", "pandas.read_pickle", "numpy.fromfile", "torch.jit.load", "torch.hub.load",
    "torch.package.PackageImporter", "torch.export.load", "subprocess.getoutput",
    "subprocess.getstatusoutput",
}  # fmt: skip
IMPORTING = {"importlib.import_module", "import_module"}

# File, name -> why it is right there.
ALLOWED = {
    ("tests/test_hostile_files.py", "pickle"): "makes the pickle that must not be read",
    ("wf_core/tests/test_odd_input.py", "pickle"): "shows that a session's pipeline is not pickled",
    ("wf_core/tests/test_fingerprint.py", "exec"): "statements of the test's own table",
    ("wf_core/tests/test_facts.py", "__import__"): "a stand-in for a module, of a fixed name",
}
# Each imports names of this repository's own, or a plugin when its code is asked for.
IMPORTERS = {
    "wf_core/src/wf_core/__init__.py": "its own modules, when a name of theirs is used",
    "wf_core/src/wf_core/cli/__init__.py": "the command that is called, from a fixed table",
    "wf_core/src/wf_core/cli/package_probe.py": "an optional package, from a table, in doctor's child",
    "wf_core/src/wf_core/plugins/loading.py": "a plugin, when a session, a calibration or doctor's child needs it",
    "wf_core/src/wf_core/testing/__init__.py": "its own modules, when a name of theirs is used",
    "wf_core/src/wf_core/testing/bench.py": "the bench of a family, when a check asks for it",
    "wf_core/src/wf_core/testing/child.py": "the plugin that is checked, in a process of its own",
    "wf_core/src/wf_core/testing/hosts.py": "the plugin that is tested",
    "wf_core/src/wf_core/testing/checks/packaging.py": "the plugin that is checked",
    "wf_core/src/wf_core/testing/checks/registry.py": "its own modules",
    "plugins/fused-wan/src/wf_plugin_fused_wan/__init__.py": "its own module of the feature that is chosen",
    "plugins/lib-attention/src/wf_lib_attention/packages.py": "an attention backend's package, when a session opens",
}


def dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> object:
    """The constant that a keyword is given; ``...`` for anything else, None where it is not given."""
    found = next((item.value for item in call.keywords if item.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else None if found is None else ...


def faults(tree: ast.AST) -> Iterator[str]:
    """Names of what can run what it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            yield from (top for name in names if (top := name.partition(".")[0]) in MODULES)
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in CALLS:
            yield name
        if keyword(node, "shell") not in (None, False):
            yield "shell"
        if keyword(node, "trust_remote_code") not in (None, False):
            yield "trust_remote_code"
        if name.endswith("torch.load") and keyword(node, "weights_only") is not True:
            yield name
        if name in ("np.load", "numpy.load") and keyword(node, "allow_pickle") not in (None, False):
            yield name


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from yaml import load", ["yaml"]),
        ("torch.load(f)", ["torch.load"]),
        ("torch.load(f, weights_only=False)", ["torch.load"]),
        ("torch.load(f, weights_only=True)", []),
        ("np.load(f, allow_pickle=True)", ["np.load"]),
        ("np.load(f)", []),
        ("subprocess.run(x, shell=True)", ["shell"]),
        ("subprocess.run(x, shell=y)", ["shell"]),
        ("os.system(x)", ["os.system"]),
        ("eval(x)", ["eval"]),
        ("model.eval()", []),
        ("re.compile(x)", []),
        ("torch.compile(x)", []),
    ],
)
def test_what_counts_as_reading_code(code: str, found: list[str]) -> None:
    assert list(faults(ast.parse(code))) == found


def test_no_source_reads_code_as_data() -> None:
    used: set[tuple[str, str]] = set()
    wrong = []
    assert len(SOURCES) > 200
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        for fault in faults(ast.parse(path.read_text(encoding="utf-8"))):
            used.add((name, fault))
            if (name, fault) not in ALLOWED:
                wrong.append(f"{name}: {fault}")
    assert wrong == []
    assert used == set(ALLOWED), "what is allowed and not used any more"


def test_modules_are_imported_by_name_only_where_it_is_said_why() -> None:
    found = set()
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        if "/src/" not in name:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and dotted(node.func) in IMPORTING:
                found.add(name)
    assert found - set(IMPORTERS) == set()


# --- nothing is left behind ------------------------------------------------------------------------------------------


def tree(*folders: Path) -> dict[str, tuple[int, int, int]]:
    """Every entry below some folders, with its kind, its size and, of files, the time of change."""
    found = {}
    for folder in folders:
        for root, names, files in os.walk(folder):
            for name in (*names, *files):
                status = os.lstat(os.path.join(root, name))
                changed = (
                    0 if name in names else status.st_mtime_ns
                )  # that outputs can be written is tried out
                found[os.path.join(root, name)] = (status.st_mode, status.st_size, changed)
    return found


PIECES = ("home", "here", "scratch", "site")
FUSION = (
    'kind = "fusion"\n[[feature]]\nname = "paper"\ntier = "exact"\nseams = ["stack"]\n'
    'state = "unavailable: only declared"\nevidence = [{ counter = "n" }]\nexample = { paper = true }\n'
    '[[switch]]\nname = "paper"\nfeature = "paper"\nform = "flag"\ndoc = "d"\n'
)
COMMANDS = {
    "list-plugins": (["list-plugins"], 0),
    "list-plugins as JSON": (["list-plugins", "--json"], 0),
    "show": (["show", "teacache"], 0),
    "resolve": (["resolve", "tiny-wan", "-s", "feature_cache=teacache"], 0),
    "resolve for another machine": (["resolve", "wan2.1-t2v-14b", "--device", "h200", "-s", "goal=fast", "--json"], 0),
    "a refusal": (["resolve", "tiny-wan", "-s", "feature_cash=teacache"], 2),
    "why": (["why", "teacache", "sdpa"], 0),
    "check": (["check", "paper"], 2),
    "a refused run": (["run", "tiny-wan", "--prompt", "p", "--out", "o/c.mp4", "--report", "o/r.json", "-s", "x=1"], 2),
    "a run off the grid": (["run", "tiny-wan", "--prompt", "p", "--out", "clip.gif", "--height", "33"], 2),
    "a refused calibration": (["calibrate", "no-such-feature", "tiny-wan", "--out", "preset.json"], 2),
    "doctor": (["doctor"], 0),
    "matrix": (["matrix", "tiny-wan"], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    """In a home, a working folder and a folder for temporary files that are empty, and beside the plugin itself."""
    arguments, code = COMMANDS[name]
    home, here, scratch, site = (tmp_path / piece for piece in PIECES)
    for folder in (home, here, scratch):
        folder.mkdir()
    write_plugin(site, "paper", FUSION, "")
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "HF_HOME", "TORCH"))
    }
    variables |= {
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    before = tree(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "wf_core", *arguments],
        cwd=here,
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, done.stderr[-2000:]
    assert tree(tmp_path) == before
