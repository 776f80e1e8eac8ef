"""Judging a plan again, when a session opens with it and when a run begins.

A plan keeps every condition that it was judged by. What was known at resolving may not be true of what is opened or
called, and what was unknown is known by then; what is still unknown at the last moment is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import attrs

from wf_core.errors import Refused
from wf_core.facts import Facts
from wf_core.manifests.conditions import Condition
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.resolving.choosing import choose
from wf_core.resolving.deciding import FAMILY_CONDITION, is_strict, of_the_model, with_request
from wf_core.resolving.judging import CONDITION, against, judge_demand
from wf_core.resolving.plan import Plan, PlannedFeature, Refusal, Violation
from wf_core.resolving.request import Demand
from wf_core.resolving.rules import core_rules, needs_of_facts, undecided_aggregates
from wf_core.values import FrozenMap

OTHER_FAMILY, NOT_ACTIVATABLE = "WF-F003", "WF-P002"


def with_plan(facts: Facts, plan: Plan, catalog: Catalog) -> Facts:
    """The facts with those whose place the plan's options take."""
    values = {
        option.sets: feature.option(option.name)
        for feature, offer in _offers_of(plan, catalog)
        for option in offer.feature.options
        if option.sets and feature.option(option.name) is not None
    }
    return facts.with_(values, source="the plan")


def rejudge_rules(plan: Plan, facts: Facts, catalog: Catalog) -> tuple[Violation, ...]:
    """What the rules between features say now: effects may depend on facts that were others when the plan was made.

    The features are judged as they stand in the plan, whatever its request would make of them by these facts. Where the
    host or the plan is strict, what is untested forbids. An aggregate that cannot be judged is a violation: there is no
    later moment for it.
    """
    facts = with_request(facts, plan.host_keys)
    rules = catalog.rules(core_rules())
    groups = [
        [judge_demand(_as_planned(feature, offer), offer, facts, catalog, rules)]
        for feature, offer in _offers_of(plan, catalog)
    ]
    about_facts = against(needs_of_facts(rules, facts), facts, {}, of_the_model, FAMILY_CONDITION)
    subjects = [judged.subject for group in groups for judged in group]
    undecided = undecided_aggregates(subjects, rules, facts)
    found = (*about_facts, *choose(groups, rules, facts).violations, *undecided)
    if not is_strict(plan.host_keys, catalog):
        return found
    return tuple(attrs.evolve(violation, level="forbid") for violation in found)


def _as_planned(feature: PlannedFeature, offer: Offer) -> Demand:
    """The demand for a feature with just the options that it has in a plan."""
    options = {name: value for name, value in feature.options if value is not None}
    return Demand((offer,), FrozenMap(options), (feature.switch,), typed=(feature.switch,))


def _offers_of(plan: Plan, catalog: Catalog) -> Iterator[tuple[PlannedFeature, Offer]]:
    offers = {(offer.plugin, offer.feature.name): offer for offer in catalog.features()}
    for feature in plan.features:
        offer = offers.get((feature.plugin, feature.name))
        if offer is not None:
            yield feature, offer


def rejudge(plan: Plan, facts: Facts, *, final: bool = False) -> tuple[Violation, ...]:
    """What the facts now decide against a plan: its family, and every condition of the family and of the features.

    Facts that were known at resolving do not count: a plan for one model, device or call is judged by another's facts.
    With ``final``, a condition that cannot be judged is a violation too: there is no later moment.
    """
    found = list(_other_family(plan, facts))
    if found:
        return tuple(found)  # the rest of the plan is about another kind of model
    facts = with_request(facts, plan.host_keys)
    found += against(plan.conditions, facts, {}, of_the_model, FAMILY_CONDITION, final=final)
    for feature in plan.features:
        names = (feature.switch, feature.name)
        options = feature.options_dict()
        found += against(feature.conditions, facts, options, partial(_always, names), CONDITION, final=final)
    return tuple(found)


def refuse(plan: Plan, violations: Iterable[Violation]) -> None:
    """Raises ``Refused`` with every violation that forbids; does nothing if there is none."""
    forbidden = tuple(violation for violation in violations if violation.level == "forbid")
    if forbidden:
        raise Refused(Refusal(plan.request, forbidden, searched=False))


def not_activatable(plan: Plan) -> Iterable[Violation]:
    """What of a plan can be judged and cannot be opened."""
    for feature in plan.features:
        if feature.not_activatable:
            reason = f"{feature.name} of {feature.plugin} cannot be activated: {feature.not_activatable}."
            yield Violation(NOT_ACTIVATABLE, "forbid", reason, (feature.switch, feature.name))
    if plan.family in plan.not_activatable:
        reason = f"models of the family {plan.family} cannot be opened yet, only judged."
        yield Violation("WF-M007", "forbid", reason, ("family", plan.family))


def _other_family(plan: Plan, facts: Facts) -> Iterable[Violation]:
    family = facts.get("model.family")
    if family is not None and family != plan.family:
        made = plan.family or "no family"
        reason = (
            f"the plan was made for a model of {made}, this one is of {family}: resolve the request again."
        )
        yield Violation(OTHER_FAMILY, "forbid", reason, ("family", family))


def _always(names: tuple[str, ...], _: Condition) -> tuple[str, ...]:
    return names
