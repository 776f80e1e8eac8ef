"""The tables of docs/families.md: what can be asked for on which model, judged for one device profile.

Nothing of the machine that writes the page counts: the models are profiles, the device is one of the core's table with
every optional package that features ask about, and one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from pages.markdown import code, codes, table, text
from pages.marked import fill
from pages.repository import catalog, records
from wf_core import data
from wf_core.cli.settings import call_defaults
from wf_core.facts import Facts
from wf_core.host import Host
from wf_core.manifests.vocabulary import KINDS, SEAMS
from wf_core.plugins.catalog import Offer
from wf_core.plugins.discovery import Discovery
from wf_core.resolving.matrix import REFUSED, UNTESTED, WORLDS, Entry, judge_alone, needed_world
from wf_core.resolving.plan import Violation

PAGE, DEVICE = "docs/families.md", "h200"
NOT_OF_FAMILY = "WF-M001"
"""Beside it no other code is shown: what else stands against a feature that the family has not says nothing."""
MODELS = (
    "wan2.1-t2v-1.3b",
    "wan2.2-ti2v-5b",
    "hunyuanvideo",
    "hunyuanvideo-1.5-t2v-480p",
    "cosmos-predict1-7b-text2world",
    "cosmos-predict2-2b-video2world",
    "cosmos-transfer2.5-2b",
)
"""One or two of each family, so that the differences between families show, and a page can hold them."""


@attrs.frozen
class Row:
    """One feature, and what is said of it on each of the models."""

    name: str
    offer: Offer
    entries: tuple[Entry, ...]


def page() -> str:
    """The page with its tables written anew."""
    rows = judged()
    return fill(
        PAGE,
        {"seams": _seams, "features": lambda: _features(rows), "reasons": lambda: _reasons(rows)},
    )


def judged() -> tuple[Row, ...]:
    """Every feature, by kind and name, each asked for by the smallest request that turns it on."""
    host = Host(Discovery(records()))
    known = {model: _facts(host, model, 1) for model in MODELS}
    worlds = {model: {number: _facts(host, model, number) for number in WORLDS} for model in MODELS}
    offers = sorted(
        {(offer.plugin, offer.feature.name): offer for offer in catalog().features()}.values(),
        key=lambda offer: (KINDS.index(offer.feature.kind), offer.feature.name),
    )
    rows = []
    for offer in offers:
        entries = []
        for model in MODELS:
            entry = judge_alone(offer.feature.name, offer, known[model], catalog())
            if entry.alone == REFUSED:
                needed = needed_world(entry.requests[0], worlds[model], catalog())
                entry = attrs.evolve(entry, needs_world=needed)
            entries.append(entry)
        rows.append(Row(offer.feature.name, offer, tuple(entries)))
    return tuple(rows)


def _facts(host: Host, model: str, world: int) -> Facts:
    return host.facts(model, call_defaults(host, model), device=DEVICE, world=world)


def _seams() -> str:
    families = sorted(catalog().family_names())
    offered = {family: catalog().family_seams(family) or () for family in families}
    rows = (
        [code(seam), *("yes" if seam in offered[family] else "no" for family in families)] for seam in SEAMS
    )
    return table(["seam", *map(code, families)], rows)


def _features(rows: Sequence[Row]) -> str:
    return "\n".join(
        _kind(kind, [row for row in rows if row.offer.feature.kind == kind]) for kind in _kinds(rows)
    )


def _kinds(rows: Sequence[Row]) -> Iterator[str]:
    present = {row.offer.feature.kind for row in rows}
    return (kind for kind in KINDS if kind in present)


def _kind(kind: str, rows: Sequence[Row]) -> str:
    lines = table(
        ["feature", *map(code, MODELS)],
        ([code(row.name), *(_cell(entry) for entry in row.entries)] for row in rows),
    )
    return f"### {kind}\n\n{lines}"


def _cell(entry: Entry) -> str:
    if entry.alone == REFUSED and not entry.needs_world:
        return codes(sorted({violation.code for violation in _told(entry)}))
    legal = "judged" if entry.offer.declared_only else "yes"
    if entry.alone == UNTESTED:
        return f"{legal}, untested ({codes(entry.codes)})"
    return f"{legal}, with {entry.needs_world} processes" if entry.needs_world else legal


def _reasons(rows: Sequence[Row]) -> str:
    says = {row["code"]: row["says"] for row in data.table("codes")["code"]}
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        for model, entry in zip(MODELS, row.entries, strict=True):
            for violation in _told(entry):
                found.setdefault(violation.code, {}).setdefault(
                    violation.reason, f"{code(row.name)} on {code(model)}"
                )
    return table(
        ["code", "reason"], ([code(name), _reason(says.get(name), found[name])] for name in sorted(found))
    )


def _told(entry: Entry) -> tuple[Violation, ...]:
    """What stands against it, of which the codes are in the table."""
    if entry.alone == REFUSED and entry.needs_world:
        return ()
    alone = tuple(violation for violation in entry.violations if violation.code == NOT_OF_FAMILY)
    return alone or entry.violations


def _reason(says: str | None, told: dict[str, str]) -> str:
    """What a code of the core says; else the reason as it was given, for whom where it is not the same for all."""
    if says is not None:
        return text(f"{says}.")
    reason, who = next(iter(told.items()))
    return text(reason) + (f" ({who}, and the like)" if len(told) > 1 else "")
