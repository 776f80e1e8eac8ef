"""The two results of resolving: a plan, or a refusal. Frozen, comparable, and with one text and one JSON form."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs

from wf_core.manifests.conditions import Condition
from wf_core.manifests.declarations import EvidenceDecl
from wf_core.values import EMPTY, FrozenMap, canonical_json, freeze, show, thaw

SCHEMA = 1
HASH_LENGTH = 16


@attrs.frozen
class Violation:
    """One broken rule: a stable code, "forbid" or "untested", one sentence, and the names that clash."""

    code: str
    level: str
    reason: str
    involves: tuple[str, ...]
    fix: str = ""

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
        }


@attrs.frozen
class PlannedFeature:
    """One feature of a plan with its validated options. ``conditions`` are all that it was judged by, each to be judged
    again; ``pending`` are those of them whose facts were not known.
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

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option; ``default`` where it is not set."""
        value = dict(self.options).get(name)
        return default if value is None else value

    def options_dict(self) -> dict[str, Any]:
        """Every declared option with its value, None where it is not set."""
        return dict(self.options)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the options, effects and stage that decide how the feature runs."""
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
            "slot": self.slot,
            "effects": list(self.effects),
            "switch": self.switch,
            "evidence": [item.describe() for item in self.evidence],
            "pending": [condition.reason for condition in self.pending],
        }


@attrs.frozen(slots=False)
class Plan:
    """What will run: features in composition order (outermost first), and the host keys that govern them.

    ``request`` is the request in normal form, ``facts_used`` the facts that were looked at, as (name, value, source);
    ``conditions`` and ``pending`` are those of the model's family.
    """

    request: tuple[tuple[str, Any], ...] = ()
    family: str = ""
    features: tuple[PlannedFeature, ...] = ()
    host_keys: FrozenMap = EMPTY
    warnings: tuple[Violation, ...] = ()
    facts_used: tuple[tuple[str, Any, str], ...] = ()
    conditions: tuple[Condition, ...] = ()
    pending: tuple[Condition, ...] = ()

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
        """One JSON object."""
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
        }


def _freeze_request(value: Any) -> tuple[tuple[str, Any], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple(sorted((str(key), freeze(item)) for key, item in pairs))


@attrs.frozen
class Refusal:
    """Why a request may not run: every violated rule, and what could be changed."""

    request: tuple[tuple[str, Any], ...] = attrs.field(converter=_freeze_request)
    violations: tuple[Violation, ...] = ()
    suggestions: tuple[str, ...] = ()

    def one_line(self) -> str:
        """All reasons in one line, the first one in full."""
        if not self.violations:
            return "refused"
        rest = len(self.violations) - 1
        more = f" (and {rest} more reason{'s' if rest > 1 else ''}; wf resolve lists all)" if rest else ""
        fix = f" {self.violations[0].fix}" if self.violations[0].fix else ""
        return " ".join(f"refused: {self.violations[0]}{fix}{more}".split())

    def explain(self) -> str:
        """The refusal as text: every reason with the names that clash, then what to change."""
        from wf_core.resolving.explain import explain_refusal

        return explain_refusal(self)

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "schema": SCHEMA,
            "legal": False,
            "request": {key: thaw(value) for key, value in self.request},
            "violations": [violation.to_json() for violation in self.violations],
            "suggestions": list(self.suggestions),
        }


def shown_request(request: tuple[tuple[str, Any], ...]) -> str:
    """A request as a person would type it."""
    return " ".join(f"{key}={show(value)}" for key, value in request) or "(empty)"
