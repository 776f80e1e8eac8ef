"""Resolving: a request and facts become a plan, or a refusal with everything that stands against it.

Pure: nothing is imported, written or loaded. What is not known yet is kept in the plan and judged again with
`rejudge`, when a session opens and when a run begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from wf_core.catalog import Catalog
from wf_core.conditions import Condition
from wf_core.effects import Effect
from wf_core.errors import Refused
from wf_core.facts import Facts
from wf_core.facts.run import grid_problems, run_facts
from wf_core.order import ordered
from wf_core.plan import Plan, PlannedFeature, Refusal, Violation
from wf_core.request import Demand, ParsedRequest, parse_request
from wf_core.rules import Subject, core_rules, judge

CONDITION, UNKNOWN_CONDITION, FAMILY_CONDITION = "WF-F001", "WF-F002", "WF-M005"


def resolve(
    request: Mapping[str, Any], facts: Facts, catalog: Catalog, *, run: Mapping[str, Any] | None = None
) -> Plan:
    """The plan of a request. Raises `Refused` with every violation, never only the first.

    ``run`` is what is known of the call already: ``height``, ``num_frames``, ``num_inference_steps`` and so on.
    """
    facts = facts.merged(run_facts(run))
    family = facts.get("model.family") or ""
    parsed = parse_request(request, catalog, family)
    facts = facts.with_(
        {f"request.{key}": value for key, value in parsed.host_keys.items()}, source="request"
    )
    violations = [*parsed.problems, *_model_violations(parsed, facts, catalog)]
    family_pending, unmet = _family_conditions(family, facts, catalog)
    violations += unmet
    judged = [_judge_demand(demand, facts, catalog) for demand in parsed.demands]
    violations += [violation for item in judged for violation in item.violations]
    violations += judge([item.subject for item in judged], (*core_rules(), *catalog.own_rules()))
    features, cycle = ordered([item.planned for item in judged])
    violations += cycle
    _refuse(parsed, violations, strict=catalog.strict)
    return Plan(
        request=parsed.request,
        family=family,
        features=features,
        host_keys=parsed.host_keys,
        warnings=tuple(violations),
        facts_used=_facts_used(parsed.demands, facts),
        pending=family_pending,
    )


def rejudge(plan: Plan, facts: Facts, *, final: bool = False) -> tuple[Violation, ...]:
    """The pending conditions of a plan that the facts now decide against.

    With ``final``, a condition that still cannot be judged is a violation too: there is no later moment.
    """
    found = [
        *(_verdict(condition, facts, {}, ("model",), FAMILY_CONDITION, final) for condition in plan.pending),
        *(
            _verdict(
                condition, facts, feature.options_dict(), (feature.switch, feature.name), CONDITION, final
            )
            for feature in plan.features
            for condition in feature.pending
        ),
    ]
    return tuple(violation for violation in found if violation is not None)


def _verdict(
    condition: Condition,
    facts: Facts,
    options: Mapping[str, Any],
    names: tuple[str, ...],
    code: str,
    final: bool = False,
) -> Violation | None:
    verdict = condition.judge(facts, options)
    involves = tuple(dict.fromkeys(names))
    if verdict.state == "unmet":
        return Violation(condition.code or code, "forbid", verdict.reason, involves)
    if verdict.state == "unknown" and final:
        reason = (
            f"{', '.join(verdict.missing)} stayed unknown, so that this cannot be ruled out: {verdict.reason}"
        )
        return Violation(UNKNOWN_CONDITION, "forbid", reason, involves)
    return None


# --- the model ---------------------------------------------------------------------------------------------------


def _model_violations(parsed: ParsedRequest, facts: Facts, catalog: Catalog) -> list[Violation]:
    found = []
    hooked = facts.get("model.hooked")
    if hooked:
        reason = f"the base is already hooked, a copy of it would run the original's modules: {hooked}."
        found.append(
            Violation("WF-M003", "forbid", reason, ("model",), "Remove the hooks, or load it again.")
        )
    family = facts.get("model.family") or ""
    if parsed.demands and (not family or catalog.family_plugin(family) is None):
        what = f"the model family {family!r}" if family else f"a family for {_classes(facts)}"
        known = ", ".join(catalog.family_names()) or "none"
        names = ("family", family) if family else ("family",)
        found.append(
            Violation("WF-M002", "forbid", f"no installed plugin provides {what}.", names, f"Known: {known}.")
        )
    found += [Violation(code, "forbid", f"{reason}.", names) for code, reason, names in grid_problems(facts)]
    return found


def _classes(facts: Facts) -> str:
    return ", ".join(facts.get("model.classes") or ()) or "this model"


def _family_conditions(
    family: str, facts: Facts, catalog: Catalog
) -> tuple[tuple[Condition, ...], list[Violation]]:
    record = catalog.family_plugin(family)
    if record is None or record.manifest is None or record.manifest.family is None:
        return (), []
    conditions = [condition.bind(record.manifest.tables) for condition in record.manifest.family.conditions]
    verdicts = [
        (c, c.judge(facts, {}).state, _verdict(c, facts, {}, ("model",), FAMILY_CONDITION))
        for c in conditions
    ]
    pending = tuple(condition for condition, state, _ in verdicts if state == "unknown")
    return pending, [violation for _, _, violation in verdicts if violation is not None]


# --- one feature -------------------------------------------------------------------------------------------------


@attrs.frozen
class _Judged:
    planned: PlannedFeature
    subject: Subject
    violations: tuple[Violation, ...]


def _judge_demand(demand: Demand, facts: Facts, catalog: Catalog) -> _Judged:
    feature = demand.offer.feature
    options = {option.name: demand.options.get(option.name, option.default) for option in feature.options}
    conditions = [condition.bind(demand.offer.tables) for condition in feature.conditions]
    pending = tuple(c for c in conditions if c.judge(facts, options).state == "unknown")
    violations = [*_usable(demand, facts, catalog), *_unmet(demand, conditions, facts, options)]
    effects = _effects(demand, options, facts)
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
        pending=pending,
    )
    return _Judged(planned, Subject(feature.name, demand.names, feature.slot, effects), tuple(violations))


def _usable(demand: Demand, facts: Facts, catalog: Catalog) -> Iterable[Violation]:
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


def _unmet(
    demand: Demand, conditions: Iterable[Condition], facts: Facts, options: Mapping[str, Any]
) -> Iterable[Violation]:
    first = True
    for condition in conditions:
        options_seen = [ref.name for ref in condition.refs() if ref.kind == "option"]
        named = [name for option in options_seen for name in demand.offer.option_names(option)]
        violation = _verdict(condition, facts, options, (*demand.names, *named), CONDITION)
        subject = next(condition.refs())
        is_nothing = subject.find(facts, options) == (True, None)
        if violation is not None and (first or subject.kind == "option" or not is_nothing):
            yield violation  # what a device that is not there lacks is no reason of its own beside "no device"
            first = False


def _effects(demand: Demand, options: Mapping[str, Any], facts: Facts) -> tuple[Effect, ...]:
    """The effects that hold; one whose ``when`` cannot be judged yet is taken to hold."""
    tables = demand.offer.tables
    rules = demand.offer.feature.effects
    return tuple(
        rule.effect.bind(options)
        for rule in rules
        if rule.when is None or rule.when.judge(facts, options, tables).state != "unmet"
    )


# --- the result --------------------------------------------------------------------------------------------------


def _refuse(parsed: ParsedRequest, violations: list[Violation], *, strict: bool) -> None:
    against = [v for v in violations if strict or v.level == "forbid"]
    if against:
        fixes = tuple(dict.fromkeys(v.fix for v in against if v.fix))
        raise Refused(Refusal(parsed.request, tuple(violations), fixes))


def _facts_used(demands: Iterable[Demand], facts: Facts) -> tuple[tuple[str, Any, str], ...]:
    conditions = [
        condition
        for demand in demands
        for condition in (
            *demand.offer.feature.conditions,
            *(rule.when for rule in demand.offer.feature.effects if rule.when is not None),
        )
    ]
    names = {ref.name for condition in conditions for ref in condition.refs() if ref.kind == "fact"}
    return tuple((name, facts.get(name), facts.source(name)) for name in sorted(names) if name in facts)
