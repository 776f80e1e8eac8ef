"""What this machine stands against: the features whose conditions about device and packages it does not meet."""

from __future__ import annotations

from collections.abc import Iterator

from wf_core.facts import Facts
from wf_core.manifests.conditions import Condition
from wf_core.plugins.catalog import Catalog, Offer

MACHINE = ("device.", "package.", "process.", "python", "platform")


def machine(catalog: Catalog) -> Facts:
    """The facts of this machine and process. Imports no package, and makes no CUDA context."""
    from wf_core.facts.device import device_facts
    from wf_core.facts.process import process_facts

    return device_facts().merged(process_facts(catalog.packages()))


def unmet(offer: Offer, facts: Facts) -> Iterator[Condition]:
    """The conditions of a feature that are about the machine alone and that it does not meet."""
    for condition in offer.feature.conditions:
        refs = list(condition.refs())
        about_machine = all(ref.kind == "fact" and ref.name.startswith(MACHINE) for ref in refs)
        if about_machine and condition.judge(facts, {}, offer.tables).state == "unmet":
            yield condition


def against(offer: Offer, facts: Facts) -> str:
    """Why a feature that can be used elsewhere cannot be used on this machine; "" when nothing is known against it."""
    first = next(unmet(offer, facts), None)
    return "" if first is None else first.judge(facts, {}, offer.tables).reason
