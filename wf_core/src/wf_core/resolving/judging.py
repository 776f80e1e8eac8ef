"""Judging one feature against facts: whether it can be used at all, and whether its conditions hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from wf_core.facts import Facts
from wf_core.manifests.conditions import Condition
from wf_core.manifests.declarations import Rule
from wf_core.manifests.effects import EffectRule
from wf_core.plugins.catalog import PACKAGE_FACT, Catalog, Offer
from wf_core.resolving.plan import Change, PlannedFeature, Violation
from wf_core.resolving.repairs import repairs_of, set_option
from wf_core.resolving.request import Demand
from wf_core.resolving.rules import (
    UNKNOWN_CONDITION,
    Cause,
    Subject,
    derived_effects,
    needs_of,
    stayed_unknown,
)

CONDITION = "WF-F001"
IDLE, INERT = "WF-F005", "inert"
"""The code of a warning that a feature does nothing in this run, where its manifest gives none, and its level."""
TRIED = "tried."
"""Prefix of the fact that a feature failed on this machine when it was tried, with the reason."""
MOST_REPAIRED = 40
"""For the reasons after these no changes are looked for: nobody tries so many."""
SET_BY = "the request's "
"""The source of a fact whose place an option takes, before the key that gives the option."""
Names = Callable[[Condition], Iterable[str]]
Repairs = Callable[[Condition], tuple[Change, ...]]


@attrs.frozen
class Judged:
    """A feature as it would be planned, as the rules see it, and what stands against it alone."""

    demand: Demand
    offer: Offer
    planned: PlannedFeature
    subject: Subject
    violations: tuple[Violation, ...]


def judge_demand(
    demand: Demand,
    offer: Offer,
    facts: Facts,
    catalog: Catalog,
    rules: Iterable[Rule],
    others: frozenset[str] = frozenset(),
) -> Judged:
    """One candidate of a demand with its options, effects and conditions; those that rules lay on its effects count.

    ``others`` are the effects of the other features, on which the default of an option may depend.
    """
    feature = offer.feature
    options = {
        option.name: demand.options.get(option.name, option.default_beside(others, demand.options))
        for option in feature.options
    }
    causes = _causes(demand, offer, options, facts)
    declared = [cause.effect for cause in causes]
    derived = derived_effects(feature, declared)
    own = tuple(condition.bind(offer.tables) for condition in feature.conditions)
    conditions = (*own, *needs_of((*declared, *derived), rules))
    planned = PlannedFeature(
        plugin=offer.plugin,
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
        effects=tuple(str(effect) for effect in declared),
        slot=feature.slot,
        evidence=feature.evidence,
        switch=demand.switch,
        conditions=conditions,
        pending=unknown(conditions, facts, options),
        not_activatable=offer.declared_only,
    )
    violations = (
        *_usable(demand, offer, facts, catalog),
        *against(
            conditions,
            facts,
            options,
            lambda condition: _names(demand, offer, condition, facts),
            CONDITION,
            repairs=lambda condition: repairs_of(condition, demand, offer, facts),
        ),
    )
    subject = Subject(
        feature.name,
        demand.names(offer),
        feature.slot,
        (*causes, *(Cause(effect) for effect in derived)),
        demand.typed,
    )
    return Judged(demand, offer, planned, subject, violations)


def refused_anyway(
    demand: Demand, offer: Offer, facts: Facts, catalog: Catalog, rules: Iterable[Rule]
) -> Iterator[Violation]:
    """What stands against a feature whatever is given of its other options: those that the demand does not give."""
    conditions = judge_demand(demand, offer, facts, catalog, rules).planned.conditions
    decided = [
        condition
        for condition in conditions
        if all(ref.kind == "fact" or ref.name in demand.options for ref in condition.refs())
    ]
    yield from _usable(demand, offer, facts, catalog)
    yield from against(decided, facts, demand.options, lambda _: (), CONDITION)


def against(
    conditions: Iterable[Condition],
    facts: Facts,
    options: Mapping[str, Any],
    names: Names,
    code: str,
    *,
    final: bool = False,
    repairs: Repairs | None = None,
) -> Iterator[Violation]:
    """What the facts decide against; with ``final``, a condition that cannot be judged is a violation too.

    What a device that is not there lacks, and the packages for it, are no reasons of their own beside another one.
    """
    told = 0
    for condition in conditions:
        violation = _violation(condition, facts, options, names, code, final)
        if violation is None or (told and _lacks_for_want_of_a_device(condition, facts)):
            continue
        if repairs is not None and told < MOST_REPAIRED:
            violation = attrs.evolve(violation, repairs=repairs(condition))
        yield violation
        told += 1


def _lacks_for_want_of_a_device(condition: Condition, facts: Facts) -> bool:
    """Whether a condition looks first at what is nothing because there is no device."""
    subject = next(condition.refs())
    about_device = subject.kind == "fact" and subject.name.startswith(("device.", PACKAGE_FACT))
    return about_device and facts.get("device.type") == "cpu" and subject.find(facts, {}) == (True, None)


def unknown(
    conditions: Iterable[Condition], facts: Facts, options: Mapping[str, Any]
) -> tuple[Condition, ...]:
    """The conditions that the facts do not decide."""
    return tuple(c for c in conditions if c.judge(facts, options).state == "unknown")


def _violation(
    condition: Condition, facts: Facts, options: Mapping[str, Any], names: Names, code: str, final: bool
) -> Violation | None:
    verdict = condition.judge(facts, options)
    if verdict.state == "met" or (verdict.state == "unknown" and not final):
        return None
    involves = tuple(dict.fromkeys((*names(condition), *condition.involves)))
    if verdict.state == "unmet":
        return Violation(condition.code or code, "forbid", verdict.reason, involves)
    return Violation(UNKNOWN_CONDITION, "forbid", stayed_unknown(verdict), involves)


def _names(demand: Demand, offer: Offer, condition: Condition, facts: Facts) -> tuple[str, ...]:
    """The keys and the feature, the options that the condition looks at with the switches that set them, the keys of
    other features that set its facts, and "device" where it is the device that decides.
    """
    refs = list(condition.refs())
    options = [ref.name for ref in refs if ref.kind == "option"]
    sources = [facts.source(ref.name) for ref in refs if ref.kind == "fact"]
    setters = [source.removeprefix(SET_BY) for source in sources if source.startswith(SET_BY)]
    device = ("device",) if any(ref.name.startswith("device.") for ref in refs) else ()
    return (
        *demand.names(offer),
        *(name for option in options for name in offer.option_names(option)),
        *setters,
        *device,
    )


def _usable(demand: Demand, offer: Offer, facts: Facts, catalog: Catalog) -> Iterator[Violation]:
    """Whether the plugin, the feature and the model's family go together at all."""
    names, feature = demand.names(offer), offer.feature.name
    if offer.record.state != "available":
        reason = f"{feature} comes from the plugin {offer.plugin}, which is {offer.state}: {offer.reason}."
        yield Violation("WF-P001", "forbid", reason, (*names, offer.plugin))
    if (why := facts.get(TRIED + feature)) is not None:
        yield Violation("WF-S003", "forbid", cannot_be_used(feature, str(why)), names)
    family = facts.get("model.family")
    if family is None or catalog.family_plugin(family) is None:
        return
    if not offer.feature.supports(family):
        supported = ", ".join(offer.feature.families)
        reason = f"{feature} does not support the model family {family}, only {supported}."
        yield Violation("WF-M001", "forbid", reason, (*names, "family"))
    seams = catalog.family_seams(family)
    needed = [seam for seam in offer.feature.seams if seam not in offer.feature.optional_seams]
    missing = [seam for seam in needed if seams is not None and seam not in seams]
    if missing:
        reason = f"the model family {family} does not offer {', '.join(missing)}, where {feature} works."
        yield Violation("WF-M004", "forbid", reason, (*names, "family"))


def cannot_be_used(feature: str, why: str) -> str:
    """The sentence for a feature that failed when it was tried."""
    return f"{feature} could not be used on this machine when it was tried: {why.rstrip('.')}."


def _causes(demand: Demand, offer: Offer, options: Mapping[str, Any], facts: Facts) -> tuple[Cause, ...]:
    """The effects that hold; one whose ``when`` cannot be judged yet is taken to hold."""
    tables = offer.tables
    found = []
    for rule in offer.feature.effects:
        if rule.when is not None and rule.when.judge(facts, options, tables).state == "unmet":
            continue
        looked_at = [n for n in rule.effect.numbers if isinstance(n, str)]
        if rule.when is not None:
            looked_at += [ref.name for ref in rule.when.refs() if ref.kind == "option"]
        keys = tuple(str(demand.option_keys[name]) for name in looked_at if name in demand.option_keys)
        ways_out = tuple(_without(rule, demand, offer, options, facts)) if keys else ()
        found.append(Cause(rule.effect.bind(options), keys, ways_out))
    return tuple(found)


def _without(
    rule: EffectRule, demand: Demand, offer: Offer, options: Mapping[str, Any], facts: Facts
) -> Iterator[Change]:
    """Other choices for the options that cause an effect, under which the feature would not have it."""
    if rule.when is None:
        return
    for option in offer.feature.options:
        for choice in option.choices if option.name in demand.option_keys else ():
            changed = {**options, option.name: choice}
            if rule.when.judge(facts, changed, offer.tables).state == "unmet":
                yield from set_option(option.name, choice, demand, offer)


def inert(judged: Judged, facts: Facts) -> Iterator[Violation]:
    """Why a judged feature does nothing in this run. What cannot be judged yet says nothing."""
    options, offer = judged.planned.options_dict(), judged.offer
    for condition in offer.feature.inert:
        if condition.judge(facts, options, offer.tables).state == "met":
            names = tuple(dict.fromkeys(_names(judged.demand, offer, condition, facts)))
            yield Violation(condition.code or IDLE, INERT, condition.sentence(facts, options), names)


def effects_of(judged: Judged) -> frozenset[str]:
    """The names of a judged feature's declared effects."""
    return frozenset(cause.effect.name for cause in judged.subject.causes)
