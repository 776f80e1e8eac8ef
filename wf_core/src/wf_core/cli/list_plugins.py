"""``wf list-plugins``: every installed plugin with its state. Reads metadata and manifests, imports none of them.

A feature that this machine cannot run is listed as unavailable, with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from wf_core.cli.here import against, machine
from wf_core.cli.output import print_json, soundness
from wf_core.cli.show_models import family_of, family_state, known_by
from wf_core.cli.wrapping import wrapped
from wf_core.facts import Facts
from wf_core.manifests.declarations import FeatureDecl
from wf_core.manifests.vocabulary import HOST_API, KINDS, SCHEMA
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.plugins.discovery import PluginRecord, discover

NOTHING = Facts()


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
    catalog = Catalog.of(discovery)
    facts = machine(catalog)
    if as_json:
        print_json(listing(records, facts))
    else:
        _print(records, facts)
    return soundness(discovery)


def kinds_of(record: PluginRecord) -> set[str]:
    """The plugin's own kind and those of its features."""
    return {record.kind, *(item.feature.kind for item in record.features())}


def listing(records: list[PluginRecord], facts: Facts = NOTHING) -> dict[str, Any]:
    """The object that ``--json`` prints. Nothing stands against a feature where the machine's facts are not given."""
    from wf_core import __version__

    version = ".".join(str(number) for number in sys.version_info[:3])
    host = {"name": "wf-core", "version": __version__, "api": HOST_API, "python": version}
    return {"schema": SCHEMA, "host": host, "plugins": [_plugin(record, facts) for record in records]}


def switches_of(record: PluginRecord) -> list[str]:
    """The request keys by which the plugin's features can be asked for: its own switches, and selectors."""
    if record.manifest is None:
        return []
    selectors = {s.switch for feature in record.manifest.features for s in feature.selects}
    return sorted(selectors | {switch.name for switch in record.manifest.switches})


def _states(record: PluginRecord, facts: Facts) -> Iterator[tuple[FeatureDecl, str, str]]:
    """Each feature with its state and reason, on this machine."""
    for item in record.features():
        why = against(Offer(record, item.feature), facts) if item.state == "available" else ""
        yield (item.feature, "unavailable", why) if why else (item.feature, item.state, item.reason)


def _plugin(record: PluginRecord, facts: Facts) -> dict[str, Any]:
    features = [
        {"name": feature.name, "kind": feature.kind, "tier": feature.tier, "state": state, "reason": reason}
        for feature, state, reason in _states(record, facts)
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
        "models": [model["name"] for model in _models(record)],
        "model_details": _models(record),
        "families": _families(record),
        "notes": list(record.notes),
        "block_with": record.block_with,
    }


def _families(record: PluginRecord) -> list[dict[str, Any]]:
    family = family_of(record)
    if family is None:
        return []
    state, reason = family_state(record)
    return [{"name": family.name, "state": state, "reason": reason}]


def _models(record: PluginRecord) -> list[dict[str, Any]]:
    models = record.manifest.models if record.manifest is not None else ()
    return [{"name": m.name, "family": m.family, "known_by": known_by(m)} for m in models]


# --- as text -----------------------------------------------------------------------------------------------------

_COLOURS = {"available": "green", "unavailable": "yellow", "ambiguous": "yellow", "blocked": "bright_black"}


def _print(records: list[PluginRecord], facts: Facts) -> None:
    if not records:
        click.echo("no plugins are installed")
        return
    heads = [("plugin", "kind", "state", "version")]
    heads += [(record.name, record.kind, record.state, record.version) for record in records]
    widths = [max(len(row[column]) for row in heads) for column in range(3)]
    click.echo(_row(heads[0], widths))
    for record, head in zip(records, heads[1:], strict=True):
        click.echo(_row(head, widths, _COLOURS.get(record.state, "red")))
        for line in _details(record, facts):
            click.echo(wrapped(line, "    ", "      "))


def _row(cells: tuple[str, ...], widths: list[int], colour: str = "") -> str:
    name, kind, state = (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
    return f"{name}  {kind}  {click.style(state, fg=colour) if colour else state}  {cells[3]}".rstrip()


def _details(record: PluginRecord, facts: Facts) -> Iterator[str]:
    """What stands below a plugin: why it cannot be used, its features by state, its family, its models."""
    if record.reason:
        yield f"{record.state}: {record.reason}"
    yield from (f"note: {note}" for note in record.notes)
    for family in _families(record):
        own = family["state"] != record.state
        yield f"family {family['name']}" + (f" ({family['state']}: {family['reason']})" if own else "")
    groups: dict[str, list[str]] = {}
    for feature, state, reason in _states(record, facts):
        own = state != record.state
        groups.setdefault(f"{state} ({reason.rstrip('.')})" if own else "", []).append(feature.name)
    for model in _models(record):
        groups.setdefault(_MODELS[model["known_by"]], []).append(model["name"])
    for said, names in groups.items():
        yield (f"{said}: " if said else "") + ", ".join(names)


_MODELS = {"files": "models", "profile": "profiles", "remote": "remote models"}
