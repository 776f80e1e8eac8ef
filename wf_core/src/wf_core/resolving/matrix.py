"""Every pair of features for one model and machine: whether it is legal, and if not by which codes.

Each pair is decided like any request, without advice. What stands against a feature alone is told once, with the
feature; a pair tells what stands between the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from typing import Any

import attrs

from wf_core.errors import Refused
from wf_core.facts import Facts
from wf_core.manifests.vocabulary import KINDS, SCHEMA
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.resolving.asking import Request, requests_for, shared_keys, together
from wf_core.resolving.deciding import Decision, decide
from wf_core.resolving.plan import Refusal, Violation
from wf_core.resolving.rules import core_rules

LEGAL, UNTESTED, REFUSED = "legal", "untested", "refused"
ONE_VALUE = "WF-R004"
WORLDS = range(2, 9)
"""The numbers of processes that are tried for a feature that is refused with the number given."""


@attrs.frozen
class Entry:
    """One feature and the verdict about it alone.

    ``reasons`` belong to ``codes``; ``needs_world`` is the smallest number of processes with which a feature would be
    legal that is refused with the number given, None for none; ``pending`` is what is judged when the call is known.
    """

    name: str
    offer: Offer
    requests: tuple[Request, ...]
    alone: str = LEGAL
    violations: tuple[Violation, ...] = ()
    needs_world: int | None = None
    pending: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of what stands against it, each once."""
        return _codes(self.violations)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        feature = self.offer.feature
        return {
            "name": self.name,
            "kind": feature.kind,
            "plugin": self.offer.plugin,
            "tier": feature.tier,
            "slot": feature.slot,
            "request": self.requests[0] if self.requests else {},
            "alone": self.alone,
            "codes": list(self.codes),
            "reasons": [violation.reason for violation in self.violations],
            "needs_world": self.needs_world,
            "not_activatable": self.offer.declared_only,
            "pending": list(self.pending),
        }


@attrs.frozen
class Pair:
    """Two features in one request. ``codes`` are all that stand against it; ``between`` what neither has alone.

    ``alone`` names those of the two that are refused alone, where the pair is refused; ``one_place`` says that they are
    refused together only because both would fill one place, or are values of one key.
    """

    a: str
    b: str
    state: str = LEGAL
    codes: tuple[str, ...] = ()
    between: tuple[Violation, ...] = ()
    alone: tuple[str, ...] = ()
    one_place: bool = False

    @property
    def only_alone(self) -> bool:
        """Whether nothing forbids the two together but what forbids one of them alone."""
        return bool(self.alone) and all(violation.level != "forbid" for violation in self.between)

    def to_json(self) -> dict[str, Any]:
        """Plain values: ``reasons`` are those between the two, and which of them is refused alone."""
        reasons = [violation.reason for violation in self.between]
        reasons += [f"{name} alone is refused." for name in self.alone]
        return {
            "a": self.a,
            "b": self.b,
            "state": self.state,
            "codes": list(self.codes),
            "reasons": reasons,
            "between": [
                {"code": violation.code, "level": violation.level, "reason": violation.reason}
                for violation in self.between
            ],
            "alone": list(self.alone),
            "one_place": self.one_place,
        }


@attrs.frozen(slots=False)
class Matrix:
    """Features in order of kind and name, and every pair of them, in the same order.

    ``versions`` are those of the host and of every plugin that brings a feature or the model's family.
    """

    model: str
    family: str
    device: str
    world: int | None
    versions: tuple[tuple[str, str], ...]
    features: tuple[Entry, ...]
    pairs: tuple[Pair, ...]

    def kinds(self) -> dict[str, tuple[Entry, ...]]:
        """The features of each kind that has some."""
        found: dict[str, tuple[Entry, ...]] = {}
        for entry in self.features:
            kind = entry.offer.feature.kind
            found[kind] = (*found.get(kind, ()), entry)
        return found

    def counts(self) -> dict[str, int]:
        """How many pairs are legal, untested and refused, and how many of the refused only for one of the two alone."""
        found = {state: sum(p.state == state for p in self.pairs) for state in (LEGAL, UNTESTED, REFUSED)}
        return {**found, "only_alone": sum(pair.only_alone for pair in self.pairs)}

    def to_json(self) -> dict[str, Any]:
        """One JSON object, features and pairs in order of names."""
        features = sorted(self.features, key=lambda entry: entry.name)
        return {
            "schema": SCHEMA,
            "model": self.model,
            "family": self.family,
            "device": self.device,
            "world": self.world,
            "versions": dict(self.versions),
            "counts": self.counts(),
            "features": [entry.to_json() for entry in features],
            "pairs": sorted(
                (_ordered(pair).to_json() for pair in self.pairs), key=lambda p: (p["a"], p["b"])
            ),
        }


def build_matrix(
    facts: Facts,
    catalog: Catalog,
    *,
    model: str = "",
    device: str = "",
    worlds: Mapping[int, Facts] | None = None,
) -> Matrix:
    """The matrix of what is known. ``worlds`` are the same facts for other numbers of processes, to try them with.

    Raises `Refused` where the empty request is refused already: every pair would say the same about the model.
    """
    nothing = decide({}, facts, catalog)
    if not nothing.legal:
        raise Refused(Refusal({}, nothing.violations))
    family = facts.get("model.family") or ""
    entries = tuple(
        _alone(name, offer, facts, catalog, worlds or {}) for name, offer in _named(catalog.features())
    )
    places = {ONE_VALUE, *(rule.code for rule in catalog.rules(core_rules()) if rule.slot)}
    pairs = tuple(
        _placed(_pair(one, other, facts, catalog, family), places) for one, other in combinations(entries, 2)
    )
    return Matrix(
        model=model or facts.get("model.id") or "",
        family=family,
        device=device,
        world=facts.get("process.world"),
        versions=_versions(entries, family, catalog),
        features=entries,
        pairs=pairs,
    )


def state_of(decision: Decision) -> str:
    """One of the three words."""
    if not decision.legal:
        return REFUSED
    return UNTESTED if decision.violations else LEGAL


def between(violations: Iterable[Violation], alone: Iterable[Violation]) -> tuple[Violation, ...]:
    """What of a pair's violations neither feature has alone; a sum over both counts as alone if one breaks it too."""
    known = tuple(alone)
    return tuple(
        violation
        for violation in dict.fromkeys(violations)
        if not any(v.code == violation.code and {*v.involves} <= {*violation.involves} for v in known)
    )


def one_value(one: Entry, other: Entry) -> Violation:
    """The violation of two features that are values of one key: no request can name both."""
    keys = shared_keys(one.requests, other.requests)
    reason = f"{' and '.join(keys)} takes one value: {one.name} or {other.name}."
    fix = f"Keep one of {one.name} and {other.name}."
    return Violation(ONE_VALUE, "forbid", reason, (*keys, one.name, other.name), fix)


def needed_world(request: Request, worlds: Mapping[int, Facts], catalog: Catalog) -> int | None:
    """The first number of processes with which a request is legal; None for none."""
    return next((number for number, facts in worlds.items() if decide(request, facts, catalog).legal), None)


def judge_alone(name: str, offer: Offer, facts: Facts, catalog: Catalog) -> Entry:
    """One feature by the smallest request for it. A feature that no key turns on has nothing to be refused for."""
    requests = requests_for(offer, catalog)
    decision = decide(requests[0] if requests else {}, facts, catalog)
    planned = decision.plan.features if decision.plan is not None else ()
    pending = tuple(condition.reason for feature in planned for condition in feature.pending)
    return Entry(name, offer, requests, state_of(decision), decision.violations, pending=pending)


def _alone(name: str, offer: Offer, facts: Facts, catalog: Catalog, worlds: Mapping[int, Facts]) -> Entry:
    entry = judge_alone(name, offer, facts, catalog)
    if entry.alone != REFUSED:
        return entry
    return attrs.evolve(entry, needs_world=needed_world(entry.requests[0], worlds, catalog))


def _pair(one: Entry, other: Entry, facts: Facts, catalog: Catalog, family: str) -> Pair:
    request = together(one.requests, other.requests, lambda key: catalog.canonical(key, family))
    alone = tuple(entry.name for entry in (one, other) if entry.alone == REFUSED)
    own = (*one.violations, *other.violations)
    if request is None:
        clash = one_value(one, other)
        return Pair(one.name, other.name, REFUSED, _codes((clash, *own)), (clash,), alone)
    decision = decide(request, facts, catalog)
    violations = decision.violations
    if decision.legal:
        return Pair(one.name, other.name, state_of(decision), _codes(violations), between(violations, own))
    return Pair(one.name, other.name, REFUSED, _codes(violations), between(violations, own), alone)


def _placed(pair: Pair, places: Collection[str]) -> Pair:
    forbidding = [violation.code for violation in pair.between if violation.level == "forbid"]
    return attrs.evolve(pair, one_place=bool(forbidding) and all(code in places for code in forbidding))


def _named(offers: Iterable[Offer]) -> list[tuple[str, Offer]]:
    """Every feature by its name, in order of kind and name; where several plugins have one, by plugin and name."""
    once = {(offer.plugin, offer.feature.name): offer for offer in offers}
    names = [name for _, name in once]
    named = [
        (name if names.count(name) == 1 else f"{plugin}/{name}", offer)
        for (plugin, name), offer in once.items()
    ]
    return sorted(named, key=lambda item: (KINDS.index(item[1].feature.kind), item[0]))


def _versions(entries: Iterable[Entry], family: str, catalog: Catalog) -> tuple[tuple[str, str], ...]:
    from wf_core import __version__

    records = [entry.offer.record for entry in entries]
    record = catalog.family_plugin(family)
    records += [record] if record is not None else []
    return tuple(sorted({("wf-core", __version__), *((r.name, r.version) for r in records)}))


def _ordered(pair: Pair) -> Pair:
    return pair if pair.a <= pair.b else attrs.evolve(pair, a=pair.b, b=pair.a)


def _codes(violations: Iterable[Violation]) -> tuple[str, ...]:
    return tuple(sorted({violation.code for violation in violations}))
