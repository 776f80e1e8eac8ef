"""Judging one feature against facts: whether it can be used at all, and whether its conditions hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from wf_core.facts import Facts
from wf_core.manifests.conditions import Condition
from wf_core.manifests.declarations import Rule
from wf_core.manifests.effects import Effect
from wf_core.plugins.catalog import Catalog
from wf_core.resolving.plan import PlannedFeature, Violation
from wf_core.resolving.request import Demand
from wf_core.resolving.rules import Subject, needs_of

CONDITION, UNKNOWN_CONDITION = "WF-F001", "WF-F002"
Names = Callable[[Condition], Iterable[str]]


@attrs.frozen
class Judged:
    """A feature as it would be planned, as the rules see it, and what stands against it."""

    planned: PlannedFeature
    subject: Subject
    violations: tuple[Violation, ...]


def judge_demand(demand: Demand, facts: Facts, catalog: Catalog, rules: Iterable[Rule]) -> Judged:
    """One demand with its options, effects and conditions; those that rules lay on its effects count among them."""
    feature = demand.offer.feature
    options = {option.name: demand.options.get(option.name, option.default) for option in feature.options}
    effects = _effects(demand, options, facts)
    own = tuple(condition.bind(demand.offer.tables) for condition in feature.conditions)
    conditions = (*own, *needs_of(effects, rules))
    planned = PlannedFeature(
        plugin=demand.plugin,
        name=feature.name,
        kind=feature.kind,
        tier=feature.tier,
        tolerance=feature.tolerance,
        experimental=feature.experimental,
        options=tuple(sorted(options.items())),
        seams=feature.seams,
        stage=feature.stage,
        before=feature.before,
        after=feature.after,
        effects=tuple(str(effect) for effect in effects),
        slot=feature.slot,
        evidence=feature.evidence,
        switch=demand.switch,
        conditions=conditions,
        pending=unknown(conditions, facts, options),
    )
    violations = (
        *_usable(demand, facts, catalog),
        *against(conditions, facts, options, lambda condition: _names(demand, condition), CONDITION),
    )
    return Judged(planned, Subject(feature.name, demand.names, feature.slot, effects), violations)


def against(
    conditions: Iterable[Condition],
    facts: Facts,
    options: Mapping[str, Any],
    names: Names,
    code: str,
    *,
    final: bool = False,
) -> Iterator[Violation]:
    """What the facts decide against; with ``final``, a condition that cannot be judged is a violation too.

    What a device that is not there lacks is no reason of its own beside "no device".
    """
    first = True
    for condition in conditions:
        violation = _violation(condition, facts, options, names, code, final)
        subject = next(condition.refs())
        is_nothing = subject.find(facts, options) == (True, None)
        if violation is not None and (first or subject.kind == "option" or not is_nothing):
            yield violation
            first = False


def unknown(
    conditions: Iterable[Condition], facts: Facts, options: Mapping[str, Any]
) -> tuple[Condition, ...]:
    """The conditions that the facts do not decide."""
    return tuple(c for c in conditions if c.judge(facts, options).state == "unknown")


def _violation(
    condition: Condition, facts: Facts, options: Mapping[str, Any], names: Names, code: str, final: bool
) -> Violation | None:
    verdict = condition.judge(facts, options)
    involves = tuple(dict.fromkeys(names(condition)))
    if verdict.state == "unmet":
        return Violation(condition.code or code, "forbid", verdict.reason, involves)
    if verdict.state == "unknown" and final:
        missing = ", ".join(verdict.missing)
        reason = f"{missing} stayed unknown, so that this cannot be ruled out: {verdict.reason}"
        return Violation(UNKNOWN_CONDITION, "forbid", reason, involves)
    return None


def _names(demand: Demand, condition: Condition) -> tuple[str, ...]:
    """The keys and the feature, and the options that the condition looks at with the switches that set them."""
    options = [ref.name for ref in condition.refs() if ref.kind == "option"]
    return (*demand.names, *(name for option in options for name in demand.offer.option_names(option)))


def _usable(demand: Demand, facts: Facts, catalog: Catalog) -> Iterator[Violation]:
    """Whether the plugin, the feature and the model's family go together at all."""
    offer, names = demand.offer, demand.names
    if offer.record.state != "available":
        reason = (
            f"{demand.feature} comes from the plugin {demand.plugin}, which is {offer.state}: {offer.reason}."
        )
        yield Violation("WF-P001", "forbid", reason, (*names, demand.plugin))
    elif offer.state != "available":
        yield Violation("WF-P002", "forbid", f"{demand.feature} is {offer.state}: {offer.reason}.", names)
    family = facts.get("model.family")
    if family is None:
        return
    if not offer.feature.supports(family):
        supported = ", ".join(offer.feature.families)
        reason = f"{demand.feature} does not support the model family {family}, only {supported}."
        yield Violation("WF-M001", "forbid", reason, (*names, "family"))
    seams = catalog.family_seams(family)
    missing = [seam for seam in offer.feature.seams if seams is not None and seam not in seams]
    if missing:
        reason = (
            f"the model family {family} does not offer {', '.join(missing)}, where {demand.feature} works."
        )
        yield Violation("WF-M004", "forbid", reason, (*names, "family"))


def _effects(demand: Demand, options: Mapping[str, Any], facts: Facts) -> tuple[Effect, ...]:
    """The effects that hold; one whose ``when`` cannot be judged yet is taken to hold."""
    tables = demand.offer.tables
    rules = demand.offer.feature.effects
    return tuple(
        rule.effect.bind(options)
        for rule in rules
        if rule.when is None or rule.when.judge(facts, options, tables).state != "unmet"
    )
