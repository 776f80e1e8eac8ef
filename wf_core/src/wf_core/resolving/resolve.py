"""Resolving: a request and facts become a plan, or a refusal with everything that stands against it.

Pure: nothing is imported, written or loaded. The plan keeps every condition, and `rejudge` judges them all again when a
session opens and when a run begins: what was known at resolving may not be true of what is opened or called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from wf_core.errors import Refused
from wf_core.facts import Facts
from wf_core.facts.run import grid_problems, run_facts
from wf_core.manifests.conditions import Condition
from wf_core.plugins.catalog import Catalog, offered_twice
from wf_core.resolving.judging import CONDITION, Judged, against, judge_demand, unknown
from wf_core.resolving.order import ordered
from wf_core.resolving.plan import Plan, Refusal, Violation
from wf_core.resolving.request import Demand, ParsedRequest, parse_request
from wf_core.resolving.rules import core_rules, judge

FAMILY_CONDITION, OTHER_FAMILY = "WF-M005", "WF-F003"


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
    rules = (*core_rules(), *catalog.own_rules())
    conditions = _family_conditions(family, catalog)
    judged = [judge_demand(demand, facts, catalog, rules) for demand in parsed.demands]
    features, cycle = ordered([item.planned for item in judged])
    violations = [
        *parsed.problems,
        *_model_violations(facts, catalog),
        *against(conditions, facts, {}, _of_the_model, FAMILY_CONDITION),
        *(violation for item in judged for violation in item.violations),
        *judge([item.subject for item in judged], rules),
        *_same_names(parsed.demands),
        *cycle,
    ]
    _refuse(parsed, violations, strict=catalog.strict)
    return Plan(
        request=parsed.request,
        family=family,
        features=features,
        host_keys=parsed.host_keys,
        warnings=tuple(violations),
        facts_used=_facts_used(judged, parsed, facts),
        conditions=conditions,
        pending=unknown(conditions, facts, {}),
    )


def rejudge(plan: Plan, facts: Facts, *, final: bool = False) -> tuple[Violation, ...]:
    """What the facts now decide against a plan: its family, and every condition of the family and of the features.

    Facts that were known at resolving do not count: a plan for one model, device or call is judged by another's facts.
    With ``final``, a condition that cannot be judged is a violation too: there is no later moment.
    """
    found = list(_other_family(plan, facts))
    if found:
        return tuple(found)  # the rest of the plan is about another kind of model
    found += against(plan.conditions, facts, {}, _of_the_model, FAMILY_CONDITION, final=final)
    for feature in plan.features:
        names = (feature.switch, feature.name)
        options = feature.options_dict()
        found += against(feature.conditions, facts, options, partial(_always, names), CONDITION, final=final)
    return tuple(found)


def _same_names(demands: Iterable[Demand]) -> Iterable[Violation]:
    """Features of one name from several plugins: counters, reports and the order know a feature by its name."""
    by_name: dict[str, list[Demand]] = {}
    for demand in demands:
        by_name.setdefault(demand.feature, []).append(demand)
    for name, several in by_name.items():
        if len(several) > 1:
            involves = tuple(dict.fromkeys(word for demand in several for word in demand.names))
            yield Violation("WF-P003", "forbid", offered_twice(name, (d.offer for d in several)), involves)


# --- the model ---------------------------------------------------------------------------------------------------


def _other_family(plan: Plan, facts: Facts) -> Iterable[Violation]:
    family = facts.get("model.family")
    if family is not None and family != plan.family:
        made = plan.family or "no family"
        reason = (
            f"the plan was made for a model of {made}, this one is of {family}: resolve the request again."
        )
        yield Violation(OTHER_FAMILY, "forbid", reason, ("family", family))


def _model_violations(facts: Facts, catalog: Catalog) -> Iterable[Violation]:
    hooked = facts.get("model.hooked")
    if hooked:
        reason = f"the base is already hooked, a copy of it would run the original's modules: {hooked}."
        yield Violation("WF-M003", "forbid", reason, ("model",), "Remove the hooks, or load it again.")
    family = facts.get("model.family") or ""
    if not family or catalog.family_plugin(family) is None:
        what = repr(family) if family else f"of {_classes(facts)}"
        known = ", ".join(catalog.family_names()) or "none"
        names: tuple[str, ...] = ("family", family) if family else ("family",)
        reason = f"no installed plugin provides the model family {what}."
        yield Violation("WF-M002", "forbid", reason, names, f"Known: {known}.")
    for code, reason, names in grid_problems(facts):
        yield Violation(code, "forbid", f"{reason}.", names)


def _classes(facts: Facts) -> str:
    return ", ".join(facts.get("model.denoisers") or facts.get("model.classes") or ()) or "this model"


def _family_conditions(family: str, catalog: Catalog) -> tuple[Condition, ...]:
    record = catalog.family_plugin(family)
    manifest = record.manifest if record is not None else None
    if manifest is None or manifest.family is None:
        return ()
    return tuple(condition.bind(manifest.tables) for condition in manifest.family.conditions)


def _always(names: tuple[str, ...], _: Condition) -> tuple[str, ...]:
    return names


_of_the_model = partial(_always, ("model",))


# --- the result --------------------------------------------------------------------------------------------------


def _refuse(parsed: ParsedRequest, violations: list[Violation], *, strict: bool) -> None:
    forbidding = [v for v in violations if strict or v.level == "forbid"]
    if forbidding:
        fixes = tuple(dict.fromkeys(v.fix for v in forbidding if v.fix))
        raise Refused(Refusal(parsed.request, tuple(violations), fixes))


def _facts_used(
    judged: Iterable[Judged], parsed: ParsedRequest, facts: Facts
) -> tuple[tuple[str, Any, str], ...]:
    """The facts that features were judged by: in their conditions, and in the conditions of their effects."""
    effects = [rule for demand in parsed.demands for rule in demand.offer.feature.effects]
    conditions = [condition for item in judged for condition in item.planned.conditions]
    conditions += [rule.when for rule in effects if rule.when is not None]
    names = {ref.name for condition in conditions for ref in condition.refs() if ref.kind == "fact"}
    return tuple((name, facts.get(name), facts.source(name)) for name in sorted(names) if name in facts)
