"""Finding a plugin's module and manifest as files. The import system is asked where, never asked to import."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from wf_core.manifests.vocabulary import FILE_NAME


def find_files(module: str, root: Path, path: Sequence[str] | None = None) -> tuple[str, Path | None]:
    """The file that an import of ``module`` would read first, "" when there is no such module; and the manifest beside
    its top-level package, or below the distribution's root.

    The path is searched once for both: every entry of it costs a look at the disk.
    """
    top = module.partition(".")[0]
    spec = _top_spec(top, path)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    manifests = (place / FILE_NAME for place in [*places, root / top])
    return _file_of(module, spec), next((manifest for manifest in manifests if manifest.is_file()), None)


def _file_of(module: str, spec: ModuleSpec | None) -> str:
    for depth in range(1, module.count(".") + 1):
        if spec is None or spec.submodule_search_locations is None:
            return ""
        full = ".".join(module.split(".")[: depth + 1])
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    if spec is None or not spec.origin or not spec.has_location:
        return ""
    return spec.origin


def missing_package(packages: Mapping[str, str], path: Sequence[str] | None = None) -> str:
    """The reason why a plugin's required packages are not there, "" when all are."""
    for name, wanted in packages.items():
        version = installed_version(name, None if path is None else tuple(path))
        if version is None:
            return f"needs the package {name}, which is not installed"
        if wanted.strip() not in ("", "*") and not _satisfies(version, wanted):
            return f"needs {name} {wanted}, {version} is installed"
    return ""


def installed_version(name: str, path: tuple[str, ...] | None = None) -> str | None:
    """The version of an installed distribution, from its metadata; None when it is not there or cannot be read."""
    everywhere = list(sys.path if path is None else path)
    found = next(iter(metadata.distributions(name=name, path=everywhere)), None)
    try:
        return None if found is None or found.metadata is None else found.metadata["Version"]
    except (OSError, ValueError):
        return None


def _satisfies(version: str, wanted: str) -> bool:
    from packaging.specifiers import SpecifierSet

    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except ValueError:  # not a range, or not a version
        return False


def _top_spec(top: str, path: Sequence[str] | None) -> ModuleSpec | None:
    if path is not None:
        return PathFinder.find_spec(top, list(path))
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
