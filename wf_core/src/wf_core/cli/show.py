"""``wf show NAME``: everything that a feature, a plugin, a family or a model declares, and whether it can be used."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import click

from wf_core.cli.output import print_json
from wf_core.cli.show_models import (
    describe_family,
    describe_model,
    echo_family,
    echo_model,
    find_families,
    find_models,
)
from wf_core.cli.wrapping import echo_entries, echo_pairs, wrapped
from wf_core.errors import BadInput
from wf_core.manifests.declarations import SwitchDecl
from wf_core.manifests.options import OptionDecl
from wf_core.manifests.vocabulary import SCHEMA
from wf_core.names import did_you_mean, normalise
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.plugins.discovery import discover
from wf_core.values import show, thaw


@click.command("show")
@click.argument("feature")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(feature: str, as_json: bool) -> None:
    """Everything that FEATURE declares: switches, options with their ranges, conditions, evidence, state.

    FEATURE may also be the name of a plugin, a model family or a model.
    """
    catalog = Catalog.of(discover().require_sound())
    offers = _offers(catalog, feature)
    families = find_families(catalog, feature)
    models = [] if families else find_models(catalog, feature)
    if not (offers or families or models):
        hint = did_you_mean(feature, _names(catalog))
        raise BadInput(f"no installed plugin has a feature, a family or a model {feature!r}{hint}")
    if as_json:
        found = {
            "features": [describe(offer) for offer in offers],
            "families": [describe_family(record) for record in families],
            "models": [describe_model(record, model) for record, model in models],
        }
        print_json({"schema": SCHEMA, **found})
        return
    shown: list[Callable[[], None]] = [partial(_echo, offer) for offer in offers]
    shown += [partial(echo_family, record) for record in families]
    shown += [partial(echo_model, record, model) for record, model in models]
    for number, echo in enumerate(shown):
        click.echo("\n" if number else "", nl=False)
        echo()


def _offers(catalog: Catalog, name: str) -> list[Offer]:
    """Every offer of a feature, in any spelling of its name; a plugin's name stands for all its features."""
    offers = list(catalog.features())
    found = [offer for offer in offers if normalise(offer.feature.name) == normalise(name)]
    return found or [offer for offer in offers if offer.plugin == normalise(name)]


def _names(catalog: Catalog) -> set[str]:
    offers, manifests = catalog.features(), [record.manifest for record in catalog.records if record.manifest]
    names = {offer.feature.name for offer in offers} | {record.name for record in catalog.records}
    return names | {model.name for manifest in manifests for model in manifest.models}


# --- as plain values ---------------------------------------------------------------------------------------------


def describe(offer: Offer) -> dict[str, Any]:
    """The declaration as plain values."""
    feature = offer.feature
    return {
        "name": feature.name,
        "plugin": offer.plugin,
        "distribution": offer.record.distribution,
        "version": offer.record.version,
        "kind": feature.kind,
        "summary": feature.summary,
        "state": offer.state,
        "reason": offer.reason,
        "declared_only": offer.declared_only,
        "tier": feature.tier,
        "tolerance": feature.tolerance,
        "experimental": feature.experimental,
        "families": list(feature.families),
        "slot": feature.slot,
        "seams": list(feature.seams),
        "stage": feature.stage,
        "before": list(feature.before),
        "after": list(feature.after),
        "effects": [str(rule.effect) + (" (sometimes)" if rule.when else "") for rule in feature.effects],
        "evidence": [item.describe() for item in feature.evidence],
        "example": thaw(feature.example),
        "trial": thaw(feature.trial),
        "sweep": thaw(feature.sweep),
        "bounds": [attrs.asdict(bound) for bound in feature.bounds],
        "goals": [{"goal": goal.goal, "adds": thaw(goal.set or feature.example)} for goal in feature.goals],
        "switches": [*_selects(offer), *(_switch(switch) for switch in offer.switches)],
        "options": [_option(option) for option in feature.options],
        "files": [
            {
                "option": file.option,
                "facts": [
                    {"name": name, "tensor": tensor, "axis": axis} for name, tensor, axis in file.facts
                ],
            }
            for file in feature.files
        ],
        "conditions": [{"code": c.code, "reason": c.reason} for c in feature.conditions],
        "inert": [{"code": c.code, "reason": c.reason} for c in feature.inert],
    }


def _option(option: OptionDecl) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": option.type,
        "default": thaw(option.default),
        "range": option.describe_range(),
        "doc": option.doc,
        "default_with": [{"effect": d.effect, "value": thaw(d.value)} for d in option.default_with],
        "sets": option.sets,
    }


def _selects(offer: Offer) -> list[dict[str, Any]]:
    return [
        {
            "name": s.switch,
            "values": [*s.values, *s.groups, *_endings(s.suffix)],
            "groups": list(s.groups),
            "aliases": [],
            "doc": "",
        }
        for s in offer.feature.selects
    ]


def _endings(suffix: str) -> list[str]:
    return [f"<file{suffix}>"] if suffix else []


def _switch(switch: SwitchDecl) -> dict[str, Any]:
    values = {"flag": "true", "value": f"<{switch.option}>", "option": f"<{switch.option}>"}
    on = values.get(switch.form) or " | ".join(
        ["true", *([f"<{switch.shorthand}>"] if switch.shorthand else []), "{...}"]
    )
    return {"name": switch.name, "values": [on], "aliases": list(switch.aliases), "doc": switch.doc}


# --- as text -----------------------------------------------------------------------------------------------------


def _echo(offer: Offer) -> None:
    data = describe(offer)
    click.echo(wrapped(f"{data['name']}: {data['summary']}" if data["summary"] else data["name"]))
    state = data["state"] + (f": {data['reason']}" if data["reason"] else "")
    state += "; a request can be judged, and not run" if data["declared_only"] else ""
    tier = data["tier"] + (", experimental" if data["experimental"] else "")
    tier += f" ({data['tolerance']})" if data["tolerance"] else ""
    at = [", ".join(data["seams"]), f"stage {data['stage']}" if data["stage"] else ""]
    at += [f"{word} {', '.join(data[word])}" for word in ("before", "after") if data[word]]
    pairs = {
        "plugin": f"{data['plugin']} ({data['distribution']} {data['version']})",
        "kind": data["kind"],
        "state": state,
        "tier": tier,
        "bounds": ", ".join(
            f"{b['measure']} {b['value']} ({b['device']}, {b['dtype']})" for b in data["bounds"]
        ),
        "families": ", ".join(data["families"]),
        "at": "; ".join(filter(None, at)),
        "slot": data["slot"],
        "effects": ", ".join(data["effects"]),
        "evidence": ", ".join(data["evidence"]),
        "example": as_typed(data["example"]),
        "trial": as_typed(data["trial"]),
        "sweep": "; ".join(as_typed(request) for request in data["sweep"]),
        "goals": "; ".join(f"{goal['goal']} adds {as_typed(goal['adds'])}" for goal in data["goals"]),
    }
    echo_pairs(pairs)
    echo_entries("switches", [_switch_entry(switch) for switch in data["switches"]])
    echo_entries("options", [_option_entry(option) for option in data["options"]])
    echo_entries("files that are looked into", [_file_entry(file) for file in data["files"]])
    echo_entries(
        "refused where this is not met", [(_line(c["code"], c["reason"]), "") for c in data["conditions"]]
    )
    echo_entries("does nothing where", [(_line(c["code"], c["reason"]), "") for c in data["inert"]])


def as_typed(request: Mapping[str, Any]) -> str:
    """A request as settings of the command line."""
    return " ".join(f"-s {shlex.quote(f'{key}={show(value)}')}" for key, value in request.items())


def _switch_entry(switch: dict[str, Any]) -> tuple[str, str]:
    also = f" (also {', '.join(switch['aliases'])})" if switch["aliases"] else ""
    shared = (
        f"{', '.join(switch['groups'])}: shared with others, and the best is chosen"
        if switch.get("groups")
        else ""
    )
    return f"{switch['name']}={' | '.join(switch['values'])}{also}", switch["doc"] or shared


def _option_entry(option: dict[str, Any]) -> tuple[str, str]:
    limits = f", {option['range']}" if option["range"] else ""
    default = "" if option["default"] is None else f", default {show(option['default'])}"
    beside = [f"Beside {d['effect']} the default is {show(d['value'])}." for d in option["default_with"]]
    sets = [f"Stands for the fact {option['sets']}."] if option["sets"] else []
    doc = " ".join(filter(None, [option["doc"], *beside, *sets]))
    return f"{option['name']}  {option['type']}{limits}{default}", doc


def _file_entry(file: dict[str, Any]) -> tuple[str, str]:
    facts = [f"{f['name']} is the size of {f['tensor']} along axis {f['axis']}" for f in file["facts"]]
    return f"the option {file['option']}", "; ".join(facts)


def _line(code: str, reason: str) -> str:
    return f"{code}  {reason}" if code else reason
