"""The plugins of this repository, read from their files: the pages do not depend on what is installed."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from wf_core.manifests.manifest import FILE_NAME, Manifest
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import PluginRecord

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = ("wf_plugin_*", "plugins/*")


@cache
def records() -> tuple[PluginRecord, ...]:
    """Every plugin of the repository, by name, as if its required packages were there."""
    found = (_record(path) for member in MEMBERS for path in ROOT.glob(f"{member}/src/*/{FILE_NAME}"))
    return tuple(sorted(found, key=lambda record: record.name))


@cache
def catalog() -> Catalog:
    """What a request could name if exactly these plugins were installed."""
    return Catalog(records())


def manifest_of(record: PluginRecord) -> Manifest:
    """Its manifest, which each of them has."""
    assert record.manifest is not None
    return record.manifest


def _record(path: Path) -> PluginRecord:
    manifest = Manifest.load(path)
    member = path.parents[2]
    project = tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return PluginRecord(
        manifest.name,
        project["name"],
        project["version"],
        kind=manifest.kind,
        location=member.relative_to(ROOT).as_posix(),
        manifest=manifest,
    )
