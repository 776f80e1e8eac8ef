"""Who may import whom, and what must not load torch: proven on the import graph and once more by importing."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
PACKAGES: list[str] = SETTINGS["root_packages"]
PLUGINS = [name for name in PACKAGES if name.startswith("wf_plugin_")]
LIBRARIES = [name for name in PACKAGES if name.startswith("wf_lib_")]
TORCH_FREE = next(contract for contract in SETTINGS["contracts"] if contract["id"] == "torch-free")
HEAVY: list[str] = TORCH_FREE["forbidden_modules"]
DOOR = {"wf_core.api"}
DOORS_OF_TESTS = {"wf_core.api", "wf_core.testing"}
# These commands run a model; the command line loads each command's module only when it is called.
RUNS_A_MODEL = {"wf_core.cli.run", "wf_core.cli.calibrate", "wf_core.cli.compare"}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        *PACKAGES, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


@pytest.fixture(scope="module")
def light(graph: grimp.ImportGraph) -> list[str]:
    """The modules that must work where torch is absent."""
    packages = set(TORCH_FREE["source_modules"])
    below = {module for package in packages for module in graph.find_descendants(package)}
    return sorted({"wf_core"} | packages | below - RUNS_A_MODEL)


@functools.cache
def _imports_at_import_time(path: Path) -> frozenset[int]:
    """The lines of the import statements that run when the module is imported: none inside a function."""
    lines: set[int] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return frozenset(lines)


def _source(module: str) -> Path:
    root = module.split(".")[0]
    folder = next(path.parent for path in ROOT.glob(f"**/src/{root}") if ".venv" not in path.parts)
    path = folder.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _at_import_time() -> grimp.ImportGraph:
    """The graph without the imports that wait inside functions."""
    eager = grimp.build_graph(
        "wf_core", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    for importer in [module for module in eager.modules if module.split(".")[0] == "wf_core"]:
        lines = _imports_at_import_time(_source(importer))
        for imported in eager.find_modules_directly_imported_by(importer):
            details = eager.get_import_details(importer=importer, imported=imported)
            if not any(detail["line_number"] in lines for detail in details):
                eager.remove_import(importer=importer, imported=imported)
        if "." in importer:  # importing a module imports the packages above it
            eager.add_import(importer=importer, imported=importer.rpartition(".")[0])
    return eager


@pytest.mark.parametrize("plugin", [*PLUGINS, *LIBRARIES])
def test_plugin_enters_the_core_by_one_door(graph: grimp.ImportGraph, plugin: str) -> None:
    entered = {
        imported
        for module in {plugin} | graph.find_descendants(plugin)
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.split(".")[0] == "wf_core"
    }
    assert entered <= DOOR


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugin_knows_no_other_plugin(graph: grimp.ImportGraph, plugin: str) -> None:
    strangers = set(PLUGINS) - {plugin}
    imported = {
        name.split(".")[0]
        for module in {plugin} | graph.find_descendants(plugin)
        for name in graph.find_modules_directly_imported_by(module)
    }
    assert imported & strangers == set()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_of_plugins_knows_no_plugin(graph: grimp.ImportGraph, library: str) -> None:
    imported = {
        name.split(".")[0]
        for module in {library} | graph.find_descendants(library)
        for name in graph.find_modules_directly_imported_by(module)
    }
    assert imported & {*PLUGINS, *LIBRARIES} <= {library}


def test_every_library_is_listed() -> None:
    """What is not among the root packages is not looked at by any rule."""
    assert sorted(path.name for path in ROOT.glob("plugins/*/src/wf_lib_*")) == sorted(LIBRARIES)


def test_core_knows_no_plugin(graph: grimp.ImportGraph) -> None:
    imported = {
        name.split(".")[0]
        for module in {"wf_core"} | graph.find_descendants("wf_core")
        for name in graph.find_modules_directly_imported_by(module)
    }
    assert imported & {*PLUGINS, *LIBRARIES} == set()


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in ROOT.glob("plugins/*/src")), ids=lambda p: p.name
)
def test_tests_of_a_plugin_use_only_its_own_package_and_the_public_core(folder: Path) -> None:
    _check_tests(folder, "wf_plugin_" + folder.name.replace("-", "_"))


@pytest.mark.parametrize("folder", sorted(ROOT.glob("wf_plugin_*")), ids=lambda p: p.name)
def test_tests_of_a_family_use_only_its_own_package_and_the_public_core(folder: Path) -> None:
    _check_tests(folder, folder.name)


def test_tests_of_the_core_use_no_plugin() -> None:
    """What the core promises is shown with plugins written inside its tests."""
    imported = {name for path in (ROOT / "wf_core/tests").rglob("*.py") for name in _imported_names(path)}
    assert sorted(name for name in imported if name.startswith("wf_plugin_")) == []


def _check_tests(folder: Path, own: str) -> None:
    wrong = []
    for path in sorted((folder / "tests").rglob("*.py")):
        for module in sorted(_imported_names(path)):
            top = module.split(".")[0]
            ours = top == "wf_core" or top.startswith("wf_plugin_")
            if ours and top != own and module not in {"wf_core", *DOORS_OF_TESTS}:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def _imported_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def test_light_modules_have_no_path_to_torch_at_import_time(light: list[str]) -> None:
    eager = _at_import_time()
    heavy = [name for name in HEAVY if name in eager.modules]
    assert heavy, "nothing in the core imports torch: the graph cannot be right"
    chains = {
        module: " -> ".join(chain)
        for module in light
        for name in heavy
        if (chain := eager.find_shortest_chain(importer=module, imported=name))
    }
    assert chains == {}


def test_light_modules_load_no_torch(light: list[str]) -> None:
    """Imports each module in turn in one fresh interpreter; the first that loads a heavy library is named."""
    program = (
        "import importlib, sys\n"
        f"heavy = {HEAVY!r}\n"
        f"for name in {light!r}:\n"
        "    importlib.import_module(name)\n"
        "    found = [library for library in heavy if library in sys.modules]\n"
        "    if found: sys.exit(f'{name} loads {found}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_is_lazy_but_its_names_are_there() -> None:
    program = (
        "import sys, wf_core\n"
        f"found = [library for library in {HEAVY!r} if library in sys.modules]\n"
        "assert not found, found\n"
        "assert {'Host', 'Refused'} <= set(dir(wf_core)), dir(wf_core)\n"
        "wf_core.Host, wf_core.Refused\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
