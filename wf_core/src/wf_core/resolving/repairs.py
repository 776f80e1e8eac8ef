"""Changes of a request that may meet a condition. They are only guesses: each is tried before it is recommended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wf_core.facts import Facts
from wf_core.manifests.conditions import Condition, Ref, Sum
from wf_core.manifests.options import OptionDecl
from wf_core.plugins.catalog import Offer
from wf_core.resolving.plan import Change
from wf_core.resolving.request import Demand

REQUEST_FACT = "request."


def repairs_of(condition: Condition, demand: Demand, offer: Offer, facts: Facts) -> tuple[Change, ...]:
    """Values of host keys and of options that the condition asks for; the rest of the request stays as it is."""
    return tuple(dict.fromkeys(_changes(condition, demand, offer, facts)))


def _changes(condition: Condition, demand: Demand, offer: Offer, facts: Facts) -> Iterator[Change]:
    for part in condition.parts:
        yield from _changes(part, demand, offer, facts)
    subject = condition.subject
    if not isinstance(subject, Ref):
        return
    for operator, operand in condition.tests:
        if subject.kind == "option":
            yield from _option_changes(subject.name, operator, operand, demand, offer, facts)
        elif (
            subject.name.startswith(REQUEST_FACT) and operator == "eq" and not isinstance(operand, Ref | Sum)
        ):
            yield Change(set=((subject.name.removeprefix(REQUEST_FACT), operand),))


def _option_changes(
    name: str, operator: str, operand: Any, demand: Demand, offer: Offer, facts: Facts
) -> Iterator[Change]:
    option = offer.feature.option(name)
    if option is None:
        return
    if operator == "present" and operand is False:
        yield from _taken_out(name, demand)
    for value in _values(option, operator, operand, demand, facts):
        yield from set_option(name, value, demand, offer)


def _values(option: OptionDecl, operator: str, operand: Any, demand: Demand, facts: Facts) -> tuple[Any, ...]:
    """Values to try for an option, given what it is compared with."""
    if isinstance(operand, Ref | Sum):
        known, value = operand.find(facts, demand.options)
        operand = value if known else None
    if option.choices:
        return tuple(choice for choice in option.choices if choice != demand.options.get(option.name))
    if operator in ("eq", "le", "ge") and operand is not None:
        return (operand,)
    return tuple(operand) if operator == "in" and isinstance(operand, tuple) else ()


def set_option(name: str, value: Any, demand: Demand, offer: Offer) -> Iterator[Change]:
    """The request's way of giving an option: its own switch, or a dotted key below the feature's."""
    switch = next((s for s in offer.switches if s.option == name and s.form in ("option", "value")), None)
    if switch is not None:
        yield Change(set=((switch.name, value),))
    elif name not in demand.options and demand.keys:
        yield Change(set=((f"{demand.keys[0]}.{name}", value),))


def _taken_out(name: str, demand: Demand) -> Iterator[Change]:
    key = demand.option_keys.get(name)
    if key is not None and key not in demand.keys:
        yield Change(unset=(str(key),))
