"""docs/authors/manifest.md: the facts that a condition may look at, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from pages.markdown import codes, table
from pages.marked import fill
from pages.repository import catalog, manifest_of, records
from wf_core import Host
from wf_core.facts.run import RUN_OPTIONS
from wf_core.manifests.conditions import Condition
from wf_core.plugins.discovery import Discovery
from wf_core.resolving.rules import core_rules

NAME = "docs/authors/manifest.md"
OF_WHAT = {
    "device": "the device",
    "model": "the model",
    "pipeline": "the pipeline",
    "process": "the process",
    "request": "the request itself",
    "run": "the call",
    "vae": "the model's VAE",
}


def page() -> str:
    """The whole page."""
    return fill(NAME, {"facts": _facts})


def _facts() -> str:
    names = sorted({*_of_profiles(), *_of_conditions(), *(f"run.{name}" for name in RUN_OPTIONS)})
    found = {prefix: list(group) for prefix, group in groupby(names, lambda name: name.partition(".")[0])}
    return table(["of", "facts"], ([said, codes(found[prefix])] for prefix, said in OF_WHAT.items()))


def _of_profiles() -> set[str]:
    host = Host(Discovery(records()))
    models = [model for record in records() for model in manifest_of(record).models]
    return {
        name
        for model in models
        if model.profile is not None and not model.remote
        for name in host.facts(model.name, device="h200", world=1)
    }


def _of_conditions() -> Iterator[str]:
    conditions = [
        c for rule in catalog().rules(core_rules()) for c in (rule.when, rule.needs) if c is not None
    ]
    for record in records():
        family = manifest_of(record).family
        conditions += [c for f in manifest_of(record).features for c in (*f.conditions, *f.inert)]
        conditions += family.conditions if family is not None else ()
    yield from _named(conditions)


def _named(conditions: Iterable[Condition]) -> Iterator[str]:
    for condition in conditions:
        yield from (ref.name for ref in condition.refs() if ref.kind == "fact")
