"""The two results of resolving: a plan, or a refusal. Frozen, comparable, and with one text and one JSON form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import attrs

from wf_core.manifests.conditions import Condition
from wf_core.manifests.declarations import EvidenceDecl
from wf_core.names import switch_key
from wf_core.values import EMPTY, FrozenMap, canonical_json, clipped, freeze, show, thaw

SCHEMA = 1
HASH_LENGTH = 16


def _frozen_pairs(pairs: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, freeze(value)) for key, value in pairs)


@attrs.frozen
class Change:
    """A change of a request: keys set to values, and keys taken out."""

    set: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_frozen_pairs)
    unset: tuple[str, ...] = ()

    def applied(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with the change made: every spelling of a key, and the dotted keys below it, go with it."""
        gone = {switch_key(key) for key in (*self.unset, *(key for key, _ in self.set))}
        kept = {key: value for key, value in request.items() if not _is_of(switch_key(str(key)), gone)}
        return {**kept, **dict(self.set)}

    def to_json(self) -> dict[str, Any]:
        """``{"set": {key: value}, "unset": [key]}``."""
        return {"set": {key: thaw(value) for key, value in self.set}, "unset": list(self.unset)}

    def __str__(self) -> str:
        parts = [f"set {shown_request(self.set)}"] if self.set else []
        parts += [f"leave out {', '.join(self.unset)}"] if self.unset else []
        return " and ".join(parts) or "change nothing"


def _is_of(key: str, heads: Iterable[str]) -> bool:
    return key in heads or any(key.startswith(f"{head}.") for head in heads)


@attrs.frozen
class Chain:
    """How a request came to clash: from the user's own keys to a feature, and from it to an effect of it."""

    keys: tuple[str, ...]
    feature: str
    effect: str = ""

    def __str__(self) -> str:
        return " -> ".join(part for part in (", ".join(self.keys), self.feature, self.effect) if part)


def _short(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name if len(name) <= 200 else clipped(name, 200) for name in names)


@attrs.frozen
class Violation:
    """One broken rule: a stable code, a level, one sentence, and the names that clash.

    The level is "forbid", "untested" (a warning, which strictness refuses) or "inert" (a warning that a feature
    would do nothing in this run).
    ``chains`` lead from the user's keys to the clash; ``fix`` says in words what to do, ``repairs`` are changes of the
    request that may help and are tried before they are recommended.
    """

    code: str
    level: str
    reason: str = attrs.field(converter=clipped)
    involves: tuple[str, ...] = attrs.field(converter=_short)
    fix: str = attrs.field(default="", converter=clipped)
    chains: tuple[Chain, ...] = attrs.field(default=(), eq=False)
    repairs: tuple[Change, ...] = attrs.field(default=(), eq=False)

    def __str__(self) -> str:
        return f"{self.code} {self.reason} [{', '.join(self.involves)}]"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "code": self.code,
            "level": self.level,
            "reason": self.reason,
            "involves": list(self.involves),
            "fix": self.fix,
            "chains": [str(chain) for chain in self.chains],
        }


@attrs.frozen
class PlannedFeature:
    """One feature of a plan with its validated options. ``conditions`` are all that it was judged by, each to be judged
    again; ``pending`` are those of them whose facts were not known. ``not_activatable`` says why the feature can be
    judged and cannot run, "" when it can.
    """

    plugin: str
    name: str
    kind: str
    tier: str
    tolerance: str = ""
    experimental: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    seams: tuple[str, ...] = ()
    stage: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    slot: str = ""
    evidence: tuple[EvidenceDecl, ...] = ()
    switch: str = ""
    conditions: tuple[Condition, ...] = ()
    pending: tuple[Condition, ...] = ()
    not_activatable: str = ""

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option; ``default`` where it is not set."""
        value = dict(self.options).get(name)
        return default if value is None else value

    def options_dict(self) -> dict[str, Any]:
        """Every declared option with its value, None where it is not set."""
        return dict(self.options)

    def to_json(self) -> dict[str, Any]:
        """Plain values: all of it."""
        return {
            "plugin": self.plugin,
            "name": self.name,
            "kind": self.kind,
            "tier": self.tier,
            "tolerance": self.tolerance,
            "experimental": self.experimental,
            "options": thaw(self.options_dict()),
            "seams": list(self.seams),
            "stage": self.stage,
            "before": list(self.before),
            "after": list(self.after),
            "slot": self.slot,
            "effects": list(self.effects),
            "switch": self.switch,
            "evidence": [item.describe() for item in self.evidence],
            "not_activatable": self.not_activatable,
            "pending": [condition.reason for condition in self.pending],
            "pending_at": [self.conditions.index(condition) for condition in self.pending],
            "conditions": [condition.to_json() for condition in self.conditions],
        }


@attrs.frozen
class NotChosen:
    """A feature that serves the goal of a plan and was not added: by which request it would have been, and why not."""

    plugin: str
    feature: str
    request: tuple[tuple[str, Any], ...] = attrs.field(converter=_frozen_pairs)
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.feature} ({shown_request(self.request)}): {' '.join(self.reasons)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "plugin": self.plugin,
            "feature": self.feature,
            "request": {key: thaw(value) for key, value in self.request},
            "reasons": list(self.reasons),
        }


@attrs.frozen(slots=False)
class Plan:
    """What will run: features in composition order (outermost first), and the host keys that govern them.

    ``request`` is the request in normal form, ``facts_used`` the facts that were looked at, as (name, value, source);
    ``conditions`` and ``pending`` are those of the model's family and of the request; ``versions`` are those of the
    plugins that the plan was made with; ``not_activatable`` names what is judged only and cannot be opened,
    ``chosen`` the keys that the request's goal has added, ``not_chosen`` what else serves it.
    """

    request: tuple[tuple[str, Any], ...] = ()
    family: str = ""
    features: tuple[PlannedFeature, ...] = ()
    host_keys: FrozenMap = EMPTY
    warnings: tuple[Violation, ...] = ()
    facts_used: tuple[tuple[str, Any, str], ...] = ()
    conditions: tuple[Condition, ...] = ()
    pending: tuple[Condition, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    not_activatable: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    not_chosen: tuple[NotChosen, ...] = ()

    @cached_property
    def hash(self) -> str:
        """What runs, in 16 hex digits: equal for equal features, options and host keys, however they were asked for."""
        features = [[f.plugin, f.name, f.options_dict()] for f in self.features]
        text = canonical_json([self.family, features, self.host_keys])
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]

    def feature(self, name: str) -> PlannedFeature | None:
        """The planned feature of that name, or None."""
        return next((feature for feature in self.features if feature.name == name), None)

    def request_dict(self) -> dict[str, Any]:
        """The request in normal form, as plain values."""
        return {key: thaw(value) for key, value in self.request}

    def host_keys_dict(self) -> dict[str, Any]:
        """Every key of the host with its value."""
        return dict(self.host_keys)

    def unknown(self) -> tuple[str, ...]:
        """The facts that pending conditions wait for."""
        conditions = [*self.pending, *(condition for f in self.features for condition in f.pending)]
        known = {name for name, _, _ in self.facts_used}
        named = {ref.name for condition in conditions for ref in condition.refs() if ref.kind == "fact"}
        return tuple(sorted(named - known))

    def explain(self) -> str:
        """The plan as text: what runs, in which order, on which grounds, and what is checked later."""
        from wf_core.resolving.explain import explain_plan

        return explain_plan(self)

    def to_json(self) -> dict[str, Any]:
        """One JSON object, from which `wf_core.resolving.saved.plan_from_json` makes the same plan."""
        return {
            "schema": SCHEMA,
            "hash": self.hash,
            "family": self.family,
            "request": self.request_dict(),
            "features": [feature.to_json() for feature in self.features],
            "host_keys": thaw(self.host_keys),
            "warnings": [warning.to_json() for warning in self.warnings],
            "unknown": list(self.unknown()),
            "facts": {name: {"value": thaw(v), "source": source} for name, v, source in self.facts_used},
            "versions": dict(self.versions),
            "not_activatable": list(self.not_activatable),
            "chosen": list(self.chosen),
            "not_chosen": [item.to_json() for item in self.not_chosen],
            "pending": [condition.reason for condition in self.pending],
            "pending_at": [self.conditions.index(condition) for condition in self.pending],
            "conditions": [condition.to_json() for condition in self.conditions],
        }


def _freeze_request(value: Any) -> tuple[tuple[str, Any], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple(sorted((str(key), freeze(item)) for key, item in pairs))


@attrs.frozen
class Fix:
    """A change that was tried: ``single`` when it alone makes the request legal, else it only removes some reasons."""

    change: Change
    single: bool

    def to_json(self) -> dict[str, Any]:
        """``{"set": ..., "unset": ..., "single": ...}``."""
        return {**self.change.to_json(), "single": self.single}


@attrs.frozen
class Refusal:
    """Why a request may not run: every violated rule, and what could be changed.

    ``nearest`` makes the request legal as a whole; None where no request is legal here, or where none was ``searched``
    for: a session that refuses a call, or a plan, has only reasons.
    """

    request: tuple[tuple[str, Any], ...] = attrs.field(converter=_freeze_request)
    violations: tuple[Violation, ...] = ()
    fixes: tuple[Fix, ...] = ()
    nearest: Change | None = None
    searched: bool = True

    def one_line(self) -> str:
        """All reasons in one line, the first one in full."""
        if not self.violations:
            return "refused"
        rest = len(self.violations) - 1
        more = f" (and {rest} more reason{'s' if rest > 1 else ''}; wf resolve lists all)" if rest else ""
        fix = f" {self.violations[0].fix}" if self.violations[0].fix else ""
        return clipped(" ".join(f"refused: {self.violations[0]}{fix}{more}".split()))

    def explain(self) -> str:
        """The refusal as text: every reason with the chains that lead to it, then what to change."""
        from wf_core.resolving.explain import explain_refusal

        return explain_refusal(self)

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "schema": SCHEMA,
            "legal": False,
            "request": {key: thaw(value) for key, value in self.request},
            "violations": [violation.to_json() for violation in self.violations],
            "fixes": [fix.to_json() for fix in self.fixes],
            "nearest": self.nearest.to_json() if self.nearest is not None else None,
        }


def shown_request(request: Iterable[tuple[str, Any]]) -> str:
    """A request as a person would type it."""
    return " ".join(f"{key}={clipped(show(value), 1000)}" for key, value in request) or "(empty)"
