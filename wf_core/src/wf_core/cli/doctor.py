"""``wf doctor``: what this machine has, and whether each plugin's code can be imported here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import click

from wf_core.cli.numbers import SECONDS
from wf_core.cli.output import print_json, print_pairs, print_table, soundness
from wf_core.facts import Facts
from wf_core.manifests.vocabulary import SCHEMA
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.plugins.discovery import PluginRecord, discover
from wf_core.values import show, thaw

MACHINE = ("device.", "package.", "process.", "python", "platform")


@click.command("doctor")
@click.option(
    "--seconds", type=SECONDS, default=60.0, show_default=True, help="Time limit for importing one plugin."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(seconds: float, as_json: bool) -> int:
    """What this machine can run, and why not the rest.

    Each available plugin is imported in a child process with a time limit; nothing is imported here. WF_STRICT=1 ends
    with exit code 2 when a plugin is broken or ambiguous.
    """
    from wf_core.facts.device import device_facts
    from wf_core.facts.process import process_facts

    discovery = discover()
    catalog = Catalog.of(discovery)
    facts = device_facts().merged(process_facts(catalog.packages()))
    plugins = [(record, *probe(record, seconds)) for record in catalog.records]
    for record, state, why in plugins:
        if state == "broken" != record.state:
            record.remember_fault(why)
    features = [(offer, *verdict(offer, facts)) for offer in catalog.features()]
    if as_json:
        print_json(_as_json(facts, plugins, features))
        return soundness(discovery)
    print_pairs({name: _fact(facts, name) for name in facts})
    click.echo()
    print_table(["plugin", "state", "why"], [[r.name, state, why] for r, state, why in plugins])
    click.echo()
    print_table(["feature", "here", "why not"], [[o.feature.name, state, why] for o, state, why in features])
    return soundness(discovery)


def probe(record: PluginRecord, seconds: float) -> tuple[str, str]:
    """The plugin's state after an import in a child process, and the reason."""
    if record.state != "available":
        return record.state, record.reason
    arguments = [sys.executable, "-m", "wf_core.cli.probe", record.name]
    try:
        done = subprocess.run(arguments, capture_output=True, timeout=seconds, check=False)
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return "broken", f"its import takes longer than {seconds:g} s"
    except ValueError:
        return "broken", f"its import ends the process with exit code {done.returncode}"
    return str(answer["state"]), str(answer["reason"])


def verdict(offer: Offer, facts: Facts) -> tuple[str, str]:
    """Whether this machine stands against a feature: its state, or its first unmet condition about the machine."""
    if offer.state != "available":
        return offer.state, offer.reason
    for condition in offer.feature.conditions:
        refs = list(condition.refs())
        if all(ref.kind == "fact" and ref.name.startswith(MACHINE) for ref in refs):
            judged = condition.judge(facts, {}, offer.tables)
            if judged.state == "unmet":
                return "no", judged.reason
    return "yes", ""


def _fact(facts: Facts, name: str) -> str:
    value = facts.get(name)
    return "-" if value is None else show(value)


def _as_json(
    facts: Facts, plugins: Iterable[tuple[PluginRecord, str, str]], features: Iterable[tuple[Offer, str, str]]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "facts": {name: thaw(fact.value) for name, fact in facts.items()},
        "plugins": [{"name": r.name, "state": state, "reason": why} for r, state, why in plugins],
        "features": [
            {"name": o.feature.name, "plugin": o.plugin, "here": state, "reason": why}
            for o, state, why in features
        ],
    }
