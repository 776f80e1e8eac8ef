"""``wf doctor``: what this machine has, and whether plugins and optional packages can be imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from wf_core.cli.here import against, machine, unmet
from wf_core.cli.numbers import SECONDS
from wf_core.cli.output import print_json, print_pairs, print_table, soundness
from wf_core.cli.packages import asked_for, installed_packages
from wf_core.cli.probing import Probed, probe_all
from wf_core.facts import Facts
from wf_core.manifests.vocabulary import SCHEMA
from wf_core.plugins.catalog import PACKAGE_FACT, Catalog, Offer
from wf_core.plugins.discovery import PluginRecord, discover
from wf_core.values import show, thaw

SESSIONS_NEED = ("torch", "diffusers")


@click.command("doctor")
@click.option("--seconds", type=SECONDS, default=60.0, show_default=True, help="Time limit for each import.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(seconds: float, as_json: bool) -> int:
    """What this machine can run, and why not the rest.

    Each available plugin, and each optional package that is installed, is imported in a child process with a time
    limit; nothing is imported here. WF_STRICT=1 ends with exit code 2 when a plugin is broken or ambiguous.
    """
    discovery = discover()
    catalog = Catalog.of(discovery)
    facts = machine(catalog)
    cpus = int(facts.get("process.cpus", 1))
    states, packages = probe_all(catalog.records, installed_packages(catalog), seconds, cpus)
    plugins = [(record, *state) for record, state in zip(catalog.records, states, strict=True)]
    for record, state, why in plugins:
        if state == "broken" != record.state:
            record.remember_fault(why)
    broken = {probed.name: probed for probed in packages if probed.reason}
    features = [(offer, *verdict(offer, facts, broken)) for offer in catalog.features()]
    if as_json:
        print_json(_as_json(facts, plugins, packages, features))
        return soundness(discovery)
    print_pairs({name: _fact(facts, name) for name in facts})
    click.echo()
    print_table(["plugin", "state", "why"], [[r.name, state, why] for r, state, why in plugins])
    click.echo()
    if packages:
        rows = [[p.package.name, p.package.version, "no" if p.reason else "yes", p.reason] for p in packages]
        print_table(["package", "version", "imports", "why not"], rows)
        click.echo()
    rows = [
        [o.feature.name, state, " ".join(install_for(o, facts)) or "-", why] for o, state, why in features
    ]
    print_table(["feature", "here", "install", "why not"], rows)
    return soundness(discovery)


def verdict(offer: Offer, facts: Facts, broken: Mapping[str, Probed]) -> tuple[str, str]:
    """Whether this machine stands against a feature: its state, its first unmet condition about the machine, or a
    package that it needs, is installed, and cannot be imported.
    """
    if offer.state != "available":
        return offer.state, offer.reason
    absent = needed(facts)
    if absent:
        return "no", f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
    if why := against(offer, facts):
        return "no", why
    useless = next((broken[name] for name in asked_for(offer) if name in broken), None)
    return ("yes", "") if useless is None else ("no", f"{useless} cannot be imported: {useless.reason}")


def needed(facts: Facts) -> tuple[str, ...]:
    """What every session needs and is not installed; listing, resolving and this command do without."""
    return tuple(name for name in SESSIONS_NEED if facts.get(f"{PACKAGE_FACT}{name}", "?") is None)


def install_for(offer: Offer, facts: Facts) -> tuple[str, ...]:
    """The distributions to install (or to install anew, if the version is too old), where that is all that is missing.

    Nothing for a feature that is not implemented, whose plugin cannot be used, or that this device cannot run.
    """
    if offer.state != "available":
        return ()
    missing = list(unmet(offer, facts))
    names = [[ref.name for ref in condition.refs()] for condition in missing]
    if not all(name.startswith(PACKAGE_FACT) for of_one in names for name in of_one):
        return ()
    wanted = [*needed(facts), *(of_one[0].removeprefix(PACKAGE_FACT) for of_one in names)]
    return tuple(dict.fromkeys(wanted))


def _fact(facts: Facts, name: str) -> str:
    value = facts.get(name)
    return "-" if value is None else show(value)


def _as_json(
    facts: Facts,
    plugins: Iterable[tuple[PluginRecord, str, str]],
    packages: Iterable[Probed],
    features: Iterable[tuple[Offer, str, str]],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "facts": {name: thaw(fact.value) for name, fact in facts.items()},
        "plugins": [{"name": r.name, "state": state, "reason": why} for r, state, why in plugins],
        "packages": [probed.to_json() for probed in packages],
        "features": [
            {
                "name": o.feature.name,
                "plugin": o.plugin,
                "here": state,
                "reason": why,
                "install": list(install_for(o, facts)),
            }
            for o, state, why in features
        ],
    }
