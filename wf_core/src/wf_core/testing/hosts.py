"""Hosts of exactly the plugins that a test names: nothing is discovered."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from wf_core.errors import BadInput
from wf_core.host import Host
from wf_core.manifests.manifest import FILE_NAME, Manifest
from wf_core.plugins.discovery import Discovery, PluginRecord
from wf_core.plugins.manifest_files import installed_version

Source = str | Path | ModuleType | Manifest
"""A plugin: its module, the module's name, or its manifest (read already, or the file)."""


def host_of(*plugins: Source) -> Host:
    """A host of these plugins and of no others; what is installed does not count.

    A plugin that is given by its manifest can be listed and resolved; its code is imported, like any plugin's, only
    when a session needs it, from the package that holds the manifest. Raises ``BadInput`` for a plugin named twice, and
    ``ManifestError`` for a manifest that cannot be read.
    """
    records = [record_of(plugin) for plugin in plugins]
    names = [record.name for record in records]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"the plugin {twice[0]!r} is given twice")
    return Host(Discovery(tuple(sorted(records, key=lambda record: record.name))))


def record_of(plugin: Source) -> PluginRecord:
    """The plugin as discovery would find it, available."""
    manifest = plugin if isinstance(plugin, Manifest) else Manifest.load(_manifest_path(plugin))
    module = manifest.path.parent.name
    if isinstance(plugin, ModuleType):
        module = plugin.__name__
    elif isinstance(plugin, str) and not plugin.endswith(FILE_NAME):
        module = plugin
    distribution = f"wf-plugin-{manifest.name}"
    return PluginRecord(
        name=manifest.name,
        distribution=distribution,
        version=installed_version(distribution) or "0",
        api=manifest.api,
        kind=manifest.kind,
        location=str(manifest.path.parent),
        module=module,
        manifest=manifest,
    )


def _manifest_path(plugin: str | Path | ModuleType) -> Path:
    if isinstance(plugin, Path) or (isinstance(plugin, str) and plugin.endswith(FILE_NAME)):
        return Path(plugin)
    module = importlib.import_module(plugin) if isinstance(plugin, str) else plugin
    if module.__file__ is None:
        raise BadInput(f"{module.__name__} is no package with a file beside which {FILE_NAME} could lie")
    return Path(module.__file__).with_name(FILE_NAME)
