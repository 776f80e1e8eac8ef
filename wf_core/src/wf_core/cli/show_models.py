"""What ``wf show`` says of model families and of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wf_core.cli.wrapping import echo_entries, echo_pairs, wrapped
from wf_core.manifests.declarations import FamilyDecl, ModelDecl
from wf_core.names import normalise
from wf_core.plugins.discovery import PluginRecord
from wf_core.values import show, thaw

if TYPE_CHECKING:
    from wf_core.plugins.catalog import Catalog


def find_families(catalog: Catalog, name: str) -> list[PluginRecord]:
    """The plugins that declare a family of that name, or that have the name themselves."""
    declared = [(record, family) for record in catalog.records if (family := family_of(record)) is not None]
    return [record for record, family in declared if normalise(name) in (family.name, record.name)]


def find_models(catalog: Catalog, name: str) -> list[tuple[PluginRecord, ModelDecl]]:
    """The models of that name or alias; a plugin's name stands for all its models."""
    declared = [(r, model) for r in catalog.records if r.manifest is not None for model in r.manifest.models]
    folded = name.strip().lower()
    found = [
        (r, m) for r, m in declared if folded in (m.name.lower(), *(alias.lower() for alias in m.aliases))
    ]
    return found or [(record, model) for record, model in declared if record.name == normalise(name)]


def family_of(record: PluginRecord) -> FamilyDecl | None:
    """The family that a plugin declares, or None."""
    return record.manifest.family if record.manifest is not None else None


def family_state(record: PluginRecord) -> tuple[str, str]:
    """Whether models of the plugin's family can be opened, and why not."""
    family = family_of(record)
    if record.state != "available" or family is None or not family.state:
        return record.state, record.reason
    return "unavailable", family.declared_only


def known_by(model: ModelDecl) -> str:
    """What there is of a model: files, a profile, or somebody else's API."""
    return "remote" if model.remote else "profile" if model.profile is not None else "files"


# --- as plain values ---------------------------------------------------------------------------------------------


def describe_family(record: PluginRecord) -> dict[str, Any]:
    """A family's declaration as plain values."""
    family = family_of(record)
    assert family is not None and record.manifest is not None
    state, reason = family_state(record)
    return {
        "name": family.name,
        "plugin": record.name,
        "summary": record.manifest.summary,
        "state": state,
        "reason": reason,
        "transformer_classes": thaw(family.transformer_classes),
        "seams": list(family.seams),
        "instead": thaw(family.instead),
        "models": [model.name for model in record.manifest.models],
        "conditions": [{"code": c.code, "reason": c.reason} for c in family.conditions],
    }


def describe_model(record: PluginRecord, model: ModelDecl) -> dict[str, Any]:
    """A model's declaration as plain values."""
    profile = model.profile
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "family": model.family,
        "plugin": record.name,
        "state": record.state,
        "reason": record.reason,
        "summary": model.summary,
        "known_by": known_by(model),
        "pipeline": profile.pipeline if profile is not None else "",
        "dtype": profile.dtype if profile is not None else "",
        "parameters": profile.parameters if profile is not None else None,
        "configs": thaw(profile.configs) if profile is not None else {},
        "official": thaw(profile.official) if profile is not None else {},
        "defaults": thaw(model.defaults),
    }


# --- as text -----------------------------------------------------------------------------------------------------

_KNOWN = {
    "files": "its files come with the plugin",
    "profile": "what is published of it: a request can be judged without its files",
    "remote": "served by its publisher's API: nothing about it can be switched here",
}


def echo_family(record: PluginRecord) -> None:
    """A family, with the names of its models."""
    data = describe_family(record)
    click.echo(wrapped(f"{data['name']}: {data['summary']}" if data["summary"] else data["name"]))
    state = data["state"] + (f": {data['reason']}" if data["reason"] else "")
    judged = record.state == "available" and data["state"] != "available"
    pairs = {
        "plugin": f"{record.name} ({record.distribution} {record.version})",
        "kind": record.kind,
        "state": state + ("; its models can be judged, and not opened" if judged else ""),
        "classes": ", ".join(data["transformer_classes"]),
        "seams": ", ".join(data["seams"]),
        "models": ", ".join(data["models"]),
        "instead": ", ".join(f"{own} for {other}" for other, own in data["instead"].items()),
    }
    echo_pairs(pairs)
    refusals = [(f"{c['code']}  {c['reason']}".strip(), "") for c in data["conditions"]]
    echo_entries("refused where this is not met", refusals)


def echo_model(record: PluginRecord, model: ModelDecl) -> None:
    """A model, with what is published of it."""
    data = describe_model(record, model)
    click.echo(wrapped(f"{data['name']}: {data['summary']}" if data["summary"] else data["name"]))
    state = data["state"] + (f": {data['reason']}" if data["reason"] else "")
    pairs = {
        "family": data["family"],
        "plugin": f"{record.name} ({record.distribution} {record.version})",
        "state": "" if state == "available" else state,
        "also": ", ".join(data["aliases"]),
        "known by": f"{data['known_by']} ({_KNOWN[data['known_by']]})",
        "pipeline": data["pipeline"],
        "size": f"{data['parameters']:,} parameters, {data['dtype']}" if data["parameters"] else "",
        "official": _numbers(data["official"]),
        "defaults": _numbers(data["defaults"]),
    }
    echo_pairs(pairs)
    echo_entries("configs", [(name, _numbers(config)) for name, config in data["configs"].items()])


def _numbers(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in values.items())
