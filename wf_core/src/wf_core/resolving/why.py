"""Why a feature can or cannot be used, and why two cannot be used together: the verdict with all its grounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from wf_core.facts import Facts
from wf_core.manifests.conditions import Condition, Ref, Sum
from wf_core.manifests.vocabulary import SCHEMA
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.resolving.asking import Request, together
from wf_core.resolving.deciding import decide, judged_by
from wf_core.resolving.judging import CONDITION, judge_demand
from wf_core.resolving.matrix import REFUSED, Entry, between, needed_world, one_value, state_of
from wf_core.resolving.naming import Target
from wf_core.resolving.plan import Change, Fix, Refusal, Violation
from wf_core.resolving.request import parse_request
from wf_core.resolving.resolve import refusal
from wf_core.resolving.rules import core_rules
from wf_core.values import show, thaw

_WORDS = {"eq": "is", "ne": "is not", "in": "is one of", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_WORDS |= {"divisible_by": "is a multiple of", "contains_all": "holds all of"}
MOST_KEYS = 4
"""A table of more keys than this is told by its size."""


@attrs.frozen
class Looked:
    """A fact or option that a condition looks at: its value, and where it came from ("" while it is not known)."""

    name: str
    known: bool
    value: Any = None
    source: str = ""

    def __str__(self) -> str:
        if not self.known:
            return f"{self.name} is not known"
        shown = "nothing" if self.value is None else show(self.value)
        return f"{self.name} is {shown} ({self.source})"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "known": self.known, "value": thaw(self.value), "source": self.source}


@attrs.frozen
class Ground:
    """A condition with its verdict (met, unmet, unknown), what it asks in words, and what it looks at."""

    state: str
    code: str
    asks: str
    reason: str
    looked_at: tuple[Looked, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "state": self.state,
            "code": self.code,
            "asks": self.asks,
            "reason": self.reason,
            "looked_at": [item.to_json() for item in self.looked_at],
        }


@attrs.frozen
class Alone:
    """One feature, or a shared name, by itself. ``grounds`` are its conditions; none are told for a shared name."""

    name: str
    offers: tuple[Offer, ...]
    request: Request
    state: str
    violations: tuple[Violation, ...] = ()
    grounds: tuple[Ground, ...] = ()

    @property
    def offer(self) -> Offer | None:
        """The feature, where it is one."""
        return self.offers[0] if len(self.offers) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        offer = self.offer
        return {
            "name": self.name,
            "plugin": offer.plugin if offer else "",
            "kind": offer.feature.kind if offer else "",
            "tier": offer.feature.tier if offer else "",
            "stands_for": [] if offer else [other.feature.name for other in self.offers],
            "request": self.request,
            "state": self.state,
            "not_activatable": offer.declared_only if offer else "",
            "violations": [violation.to_json() for violation in self.violations],
            "conditions": [ground.to_json() for ground in self.grounds],
        }


@attrs.frozen
class Why:
    """The answer about one feature or two. ``request`` is what was judged, None where no request can name both.

    ``between`` is what neither of two has alone; ``refusal`` has the changes that help, and ``needs_world`` is the
    smallest number of processes with which it would be legal.
    """

    features: tuple[Alone, ...]
    state: str
    request: Request | None
    between: tuple[Violation, ...] = ()
    refusal: Refusal | None = None
    needs_world: int | None = None

    @property
    def legal(self) -> bool:
        """Whether the request can be used, as far as is known."""
        return self.state != REFUSED

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        found = self.refusal.to_json() if self.refusal is not None else {}
        return {
            "schema": SCHEMA,
            "legal": self.legal,
            "state": self.state,
            "request": self.request,
            "features": [feature.to_json() for feature in self.features],
            "between": [violation.to_json() for violation in self.between],
            "violations": found.get("violations", []),
            "fixes": found.get("fixes", []),
            "nearest": found.get("nearest"),
            "needs_world": self.needs_world,
        }


def why(
    targets: tuple[Target, ...], facts: Facts, catalog: Catalog, worlds: Mapping[int, Facts] | None = None
) -> Why:
    """Why one target, or two of them together, can or cannot be used. Two names of one feature are one.

    ``worlds`` are the same facts for other numbers of processes, to try a refused request with.
    """
    if len(targets) == 2 and targets[0] == targets[1]:
        targets = targets[:1]
    alone = tuple(_alone(target, facts, catalog) for target in targets)
    family = facts.get("model.family") or ""
    request: Request | None = alone[0].request
    if len(targets) == 2:
        first, second = targets[0].requests, targets[1].requests
        request = together(first, second, lambda key: catalog.canonical(key, family))
    if request is None:
        return _one_key(targets, alone)
    decision = decide(request, facts, catalog)
    new = between(decision.violations, [violation for item in alone for violation in item.violations])
    if decision.legal:
        return Why(alone, state_of(decision), request, new)
    found = refusal(request, decision, facts, catalog)
    return Why(alone, REFUSED, request, new, found, needed_world(request, worlds or {}, catalog))


def grounds_of(request: Request, facts: Facts, catalog: Catalog) -> tuple[Ground, ...]:
    """Every condition of the features of a request, those that rules lay on them too, in the order they are judged."""
    parsed = parse_request(request, catalog, facts.get("model.family") or "")
    known = judged_by(parsed, facts)
    rules = catalog.rules(core_rules())
    judged = [judge_demand(demand, demand.offer, known, catalog, rules) for demand in parsed.demands]
    return tuple(
        _ground(condition, known, item.planned.options_dict())
        for item in judged
        for condition in item.planned.conditions
    )


def describe(condition: Condition) -> str:
    """What a condition asks, in words: ``device.sm is one of 90, 100``."""
    if condition.join:
        return (" or " if condition.join == "any_of" else " and ").join(map(describe, condition.parts))
    return " and ".join(f"{condition.subject} {_test(*test)}" for test in condition.tests)


def _test(operator: str, operand: Any) -> str:
    if operator == "present":
        return "is there" if operand else "is not there"
    if operator == "in_table":
        keys = sorted(map(show, operand)) if isinstance(operand, frozenset) else []
        return (
            f"is one of {', '.join(keys)}" if 0 < len(keys) <= MOST_KEYS else f"is in a table of {len(keys)}"
        )
    if isinstance(operand, Ref | Sum):
        shown = str(operand)
    elif isinstance(operand, tuple | frozenset):
        shown = ", ".join(map(show, operand))
    else:
        shown = show(operand)
    return f"{_WORDS[operator]} {shown}"


# --- one feature -------------------------------------------------------------------------------------------------


def _alone(target: Target, facts: Facts, catalog: Catalog) -> Alone:
    request = target.requests[0] if target.requests else {}
    decision = decide(request, facts, catalog)
    grounds = grounds_of(request, facts, catalog) if target.offer is not None else ()
    told = decision.violations if decision.plan is None else decision.plan.warnings
    return Alone(target.name, target.offers, request, state_of(decision), told, grounds)


def _ground(condition: Condition, facts: Facts, options: Mapping[str, Any]) -> Ground:
    verdict = condition.judge(facts, options)
    reason = verdict.reason or condition.reason
    refs = dict.fromkeys(condition.refs())
    looked_at = tuple(_looked(ref, facts, options) for ref in refs)
    return Ground(verdict.state, condition.code or CONDITION, describe(condition), reason, looked_at)


def _looked(ref: Ref, facts: Facts, options: Mapping[str, Any]) -> Looked:
    known, value = ref.find(facts, options)
    source = "option" if ref.kind == "option" else facts.source(ref.name)
    return Looked(ref.name, known, value, source)


# --- what to change ------------------------------------------------------------------------------------------------


def _one_key(targets: Iterable[Target], alone: tuple[Alone, ...]) -> Why:
    """Two values of one key: no request can name both, and each by itself is the nearest."""
    one, other = (Entry(t.name, t.offers[0], t.requests) for t in targets)
    clash = one_value(one, other)
    fixes = tuple(
        Fix(Change(set=tuple(item.request.items())), True) for item in alone if item.state != REFUSED
    )
    violations = (clash, *(violation for item in alone for violation in item.violations))
    found = Refusal({}, violations, fixes, fixes[0].change if fixes else None)
    return Why(alone, REFUSED, None, (clash,), found)
