"""``wf show FEATURE``: everything that a feature declares, and whether it can be used."""

from __future__ import annotations

from typing import Any

import click

from wf_core.cli.output import print_json, print_pairs, print_table
from wf_core.errors import BadInput
from wf_core.manifests.declarations import SwitchDecl
from wf_core.manifests.vocabulary import SCHEMA
from wf_core.names import did_you_mean, normalise
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.plugins.discovery import discover
from wf_core.values import show, thaw


@click.command("show")
@click.argument("feature")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(feature: str, as_json: bool) -> None:
    """Everything that FEATURE declares: switches, options with their ranges, conditions, evidence, state."""
    offers = find(Catalog.of(discover().require_sound()), feature)
    if as_json:
        print_json({"schema": SCHEMA, "features": [describe(offer) for offer in offers]})
        return
    for number, offer in enumerate(offers):
        click.echo("\n" if number else "", nl=False)
        _print(offer)


def find(catalog: Catalog, name: str) -> list[Offer]:
    """Every offer of a feature, in any spelling of its name; a plugin's name stands for all its features."""
    offers = list(catalog.features())
    found = [offer for offer in offers if normalise(offer.feature.name) == normalise(name)]
    found = found or [offer for offer in offers if offer.plugin == normalise(name)]
    if not found:
        names = {offer.feature.name for offer in offers} | {offer.plugin for offer in offers}
        raise BadInput(f"no installed plugin has a feature {name!r}{did_you_mean(name, names)}")
    return found


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
        "switches": [*_selects(offer), *(_switch(switch) for switch in offer.switches)],
        "options": [
            {
                "name": option.name,
                "type": option.type,
                "default": thaw(option.default),
                "range": option.describe_range(),
                "doc": option.doc,
            }
            for option in feature.options
        ],
        "conditions": [{"code": c.code, "reason": c.reason} for c in feature.conditions],
    }


def _selects(offer: Offer) -> list[dict[str, Any]]:
    return [
        {"name": s.switch, "values": list(s.values), "aliases": [], "doc": ""} for s in offer.feature.selects
    ]


def _switch(switch: SwitchDecl) -> dict[str, Any]:
    values = {"flag": "true", "value": f"<{switch.option}>", "option": f"<{switch.option}>"}
    on = values.get(switch.form) or " | ".join(
        ["true", *([f"<{switch.shorthand}>"] if switch.shorthand else []), "{...}"]
    )
    return {"name": switch.name, "values": [on], "aliases": list(switch.aliases), "doc": switch.doc}


def _print(offer: Offer) -> None:
    data = describe(offer)
    click.echo(f"{data['name']}: {data['summary']}" if data["summary"] else data["name"])
    state = data["state"] + (f": {data['reason']}" if data["reason"] else "")
    tier = data["tier"] + (", experimental" if data["experimental"] else "")
    tier += f" ({data['tolerance']})" if data["tolerance"] else ""
    pairs = {
        "plugin": f"{data['plugin']} ({data['distribution']} {data['version']})",
        "kind": data["kind"],
        "state": state,
        "tier": tier,
        "families": ", ".join(data["families"]),
        "at": ", ".join(data["seams"]) + (f"; stage {data['stage']}" if data["stage"] else ""),
        "slot": data["slot"],
        "effects": ", ".join(data["effects"]),
        "evidence": ", ".join(data["evidence"]),
    }
    print_pairs({name: value for name, value in pairs.items() if value.strip("; ")})
    for switch in data["switches"]:
        also = f" (also {', '.join(switch['aliases'])})" if switch["aliases"] else ""
        click.echo(f"switch  {switch['name']}={' | '.join(switch['values'])}{also}  {switch['doc']}".rstrip())
    if data["options"]:
        rows = [[o["name"], o["type"], _default(o["default"]), o["range"], o["doc"]] for o in data["options"]]
        print_table(["option", "type", "default", "range", "meaning"], rows)
    for condition in data["conditions"]:
        click.echo(f"refused when not met: {condition['reason']}")


def _default(value: Any) -> str:
    return "-" if value is None else show(value)
