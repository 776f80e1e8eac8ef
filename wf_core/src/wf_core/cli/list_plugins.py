"""``wf list-plugins``: every installed plugin with its state. Reads metadata and manifests, imports none of them."""

from __future__ import annotations

import sys
from typing import Any

import click

from wf_core.cli.output import print_json, print_table, soundness
from wf_core.manifests.vocabulary import HOST_API, KINDS, SCHEMA
from wf_core.plugins.discovery import PluginRecord, discover


@click.command("list-plugins")
@click.option(
    "--kind", type=click.Choice(KINDS), default=None, help="Only plugins with features of this kind."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(kind: str | None, as_json: bool) -> int:
    """Every installed plugin with its state and reason.

    WF_BLOCK and WF_ONLY take plugin names or dist:NAME, separated by commas. WF_STRICT=1 ends with exit code 2 when a
    plugin is broken or ambiguous, or when WF_BLOCK or WF_ONLY names a plugin that is not there.
    """
    discovery = discover(tolerant=True)
    records = [record for record in discovery.plugins if kind is None or kind in kinds_of(record)]
    if as_json:
        print_json(listing(records))
    else:
        _print(records)
    return soundness(discovery)


def kinds_of(record: PluginRecord) -> set[str]:
    """The plugin's own kind and those of its features."""
    return {record.kind, *(item.feature.kind for item in record.features())}


def listing(records: list[PluginRecord]) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    from wf_core import __version__

    version = ".".join(str(number) for number in sys.version_info[:3])
    host = {"name": "wf-core", "version": __version__, "api": HOST_API, "python": version}
    return {"schema": SCHEMA, "host": host, "plugins": [_plugin(record) for record in records]}


def switches_of(record: PluginRecord) -> list[str]:
    """The request keys by which the plugin's features can be asked for: its own switches, and selectors."""
    if record.manifest is None:
        return []
    selectors = {s.switch for feature in record.manifest.features for s in feature.selects}
    return sorted(selectors | {switch.name for switch in record.manifest.switches})


def _plugin(record: PluginRecord) -> dict[str, Any]:
    features = [
        {
            "name": item.feature.name,
            "kind": item.feature.kind,
            "tier": item.feature.tier,
            "state": item.state,
            "reason": item.reason,
        }
        for item in record.features()
    ]
    return {
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "api": record.api,
        "kind": record.kind,
        "state": record.state,
        "reason": record.reason,
        "location": record.location,
        "features": features,
        "switches": switches_of(record),
        "models": [model.name for model in record.manifest.models] if record.manifest else [],
        "notes": list(record.notes),
        "block_with": record.block_with,
    }


def _print(records: list[PluginRecord]) -> None:
    rows = []
    for record in records:
        names = [item.feature.name for item in record.features()]
        names += [model.name for model in record.manifest.models] if record.manifest else []
        rows.append([record.name, record.kind, record.state, record.version, ", ".join(names)])
    if not rows:
        click.echo("no plugins are installed" if not records else "")
        return
    print_table(["plugin", "kind", "state", "version", "features"], rows)
    for record in records:
        if record.reason:
            click.echo(f"{record.name}: {record.state}: {record.reason}")
        for note in record.notes:
            click.echo(f"{record.name}: note: {note}")
