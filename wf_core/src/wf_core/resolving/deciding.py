"""Deciding whether a request is legal: parse it, judge every feature, choose, and apply the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from wf_core.facts import Fact, Facts
from wf_core.facts.files import file_facts
from wf_core.facts.run import grid_problems, with_derived
from wf_core.manifests.conditions import Condition
from wf_core.manifests.declarations import FileDecl, Rule
from wf_core.names import folded
from wf_core.plugins.catalog import Catalog, Offer, offered_twice
from wf_core.resolving.choosing import Choice, choose
from wf_core.resolving.judging import (
    SET_BY,
    Judged,
    against,
    effects_of,
    inert,
    judge_demand,
    refused_anyway,
    unknown,
)
from wf_core.resolving.order import ordered
from wf_core.resolving.plan import Plan, Violation
from wf_core.resolving.request import Demand, ParsedRequest, parse_request
from wf_core.resolving.rules import core_rules, needs_of_facts

FAMILY_CONDITION, REMOTE = "WF-M005", "WF-M006"
OFFICIAL, UNTESTED = "official", "untested"
LAST = 1000
"""The rank of a candidate of a shared name that declares none."""


@attrs.frozen
class Decision:
    """A plan, or None with violations of which some forbid. ``legal`` says which."""

    parsed: ParsedRequest
    violations: tuple[Violation, ...]
    plan: Plan | None = None

    @property
    def legal(self) -> bool:
        """Whether there is a plan."""
        return self.plan is not None


def decide(request: Mapping[str, Any], facts: Facts, catalog: Catalog) -> Decision:
    """The decision about a request, without advice about what to change."""
    family = facts.get("model.family") or ""
    parsed = parse_request(request, catalog, family)
    facts = judged_by(parsed, facts)
    if facts.get("model.remote"):
        return Decision(parsed, (_remote(facts),))
    rules = catalog.rules(core_rules())
    conditions = (*_family_conditions(family, catalog), *needs_of_facts(rules, facts))
    groups = _judged(parsed.demands, facts, catalog, rules)
    strict = is_strict(parsed.host_keys, catalog)
    choice = choose(groups, rules, facts, strict=strict)
    features, cycle = ordered([item.planned for item in choice.chosen])
    violations = (
        *_problems(parsed, facts, catalog, rules),
        *_model_violations(facts, catalog),
        *against(conditions, facts, {}, of_the_model, FAMILY_CONDITION),
        *choice.violations,
        *_same_names(choice),
        *cycle,
    )
    if any(strict or violation.level == "forbid" for violation in violations):
        if strict:
            violations = tuple(_forbidden_by_strictness(each, parsed.host_keys) for each in violations)
        return Decision(parsed, tuple(map(parsed.in_the_users_words, violations)))
    return Decision(
        parsed,
        violations,
        Plan(
            request=parsed.request,
            family=family,
            features=features,
            host_keys=parsed.host_keys,
            warnings=(
                *violations,
                *(warning for judged in choice.chosen for warning in inert(judged, facts)),
            ),
            facts_used=_facts_used(choice, conditions, facts),
            conditions=conditions,
            pending=unknown(conditions, facts, {}),
            versions=_versions(choice, family, catalog),
            not_activatable=_not_activatable(choice, family, catalog),
        ),
    )


def _problems(
    parsed: ParsedRequest, facts: Facts, catalog: Catalog, rules: Sequence[Rule]
) -> Iterable[Violation]:
    """The problems of the request itself. None advises to ask for a feature that would be refused in turn."""
    ignored = dict(parsed.ignored)
    for problem in parsed.problems:
        demand = ignored.get(problem)
        found = () if demand is None else refused_anyway(demand, demand.offer, facts, catalog, rules)
        against_it = next(iter(found), None)
        if demand is None or against_it is None:
            yield problem
            continue
        asked = " or ".join(demand.keys) or demand.feature
        fix = f"With {asked} it would be refused too: {against_it.code} {against_it.reason}"
        yield attrs.evolve(problem, fix=fix, repairs=())


def judged_by(parsed: ParsedRequest, facts: Facts) -> Facts:
    """What the features of a request are judged by: the facts, with what follows from the call and from the request."""
    known = with_request(facts, parsed.host_keys)
    files = file_facts(known, _files(parsed.demands))
    return known.merged(files).with_(_set_by_options(parsed.demands))


def with_request(facts: Facts, host_keys: Mapping[str, Any]) -> Facts:
    """The facts with what follows from them, and ``request.<key>`` for every key of the host."""
    keys = {f"request.{key}": value for key, value in host_keys.items()}
    return with_derived(facts).with_(keys, source="request")


def is_strict(host_keys: Mapping[str, Any], catalog: Catalog) -> bool:
    """Whether what is untested is refused: under ``WF_STRICT`` and ``profile=official``."""
    return catalog.strict or host_keys.get("profile") == OFFICIAL


def _forbidden_by_strictness(violation: Violation, host_keys: Mapping[str, Any]) -> Violation:
    """What is untested, with what makes it a reason: the profile, or strict mode."""
    if violation.level != UNTESTED:
        return violation
    if host_keys.get("profile") != OFFICIAL:
        return attrs.evolve(violation, fix="WF_STRICT=1 refuses what is untested.")
    involves = (*violation.involves, "profile")
    return attrs.evolve(violation, involves=involves, fix="profile=official refuses what is untested.")


def _files(demands: Iterable[Demand]) -> list[tuple[str, FileDecl, str]]:
    """The files that the request names, each with its feature and what to read from it."""
    return [
        (demand.feature, declared, str(demand.options[declared.option]))
        for demand in demands
        for declared in demand.offer.feature.files
        if isinstance(demand.options.get(declared.option), str)
    ]


def _set_by_options(demands: Iterable[Demand]) -> dict[str, Fact]:
    """The facts whose place an option takes, so that all features are judged by what the request makes of them."""
    return {
        option.sets: Fact(demand.options[option.name], f"{SET_BY}{demand.option_keys[option.name]}")
        for demand in demands
        for option in demand.offer.feature.options
        if option.sets and option.name in demand.options
    }


# --- features ----------------------------------------------------------------------------------------------------


def _judged(
    demands: Sequence[Demand], facts: Facts, catalog: Catalog, rules: Sequence[Rule]
) -> list[list[Judged]]:
    """The candidates of every demand, judged, best first. Options whose default depends on others are set last."""
    groups = [
        [judge_demand(demand, offer, facts, catalog, rules) for offer in _preferred(demand, facts)]
        for demand in demands
    ]
    alone = [(index, group[0]) for index, group in enumerate(groups) if len(group) == 1]
    for index, judged in alone:
        if any(option.default_with for option in judged.offer.feature.options):
            others = frozenset().union(*(effects_of(other) for at, other in alone if at != index))
            groups[index] = [judge_demand(judged.demand, judged.offer, facts, catalog, rules, others)]
    return groups


def _preferred(demand: Demand, facts: Facts) -> list[Offer]:
    """The candidates best first: those that can be activated, then by rank, then by name.

    What cannot be activated is never chosen where something else answers to the shared name.
    """
    if not demand.group:
        return [demand.offer]
    ranked = sorted(
        demand.candidates,
        key=lambda offer: (bool(offer.declared_only), _rank(offer, demand, facts), offer.feature.name),
    )
    usable = [offer for offer in ranked if offer.state == "available"]
    return usable or ranked


def _rank(offer: Offer, demand: Demand, facts: Facts) -> int:
    for select in offer.feature.selects:
        if select.switch != demand.switch or demand.group not in map(folded, select.groups):
            continue
        for rank in select.ranks:
            if rank.when is None or rank.when.judge(facts, {}, offer.tables).state == "met":
                return rank.order
    return LAST


def _same_names(choice: Choice) -> Iterable[Violation]:
    """Features of one name from several plugins: counters, reports and the order know a feature by its name."""
    by_name: dict[str, list[Judged]] = {}
    for judged in choice.chosen:
        by_name.setdefault(judged.planned.name, []).append(judged)
    for name, several in by_name.items():
        if len(several) > 1:
            involves = tuple(dict.fromkeys(word for judged in several for word in judged.subject.names))
            yield Violation("WF-P003", "forbid", offered_twice(name, (j.offer for j in several)), involves)


# --- the model ---------------------------------------------------------------------------------------------------


def _remote(facts: Facts) -> Violation:
    name = facts.get("model.id") or "this model"
    reason = f"{name} is served remotely by its publisher's API: it has no local switches, and nothing to open here."
    return Violation(REMOTE, "forbid", reason, ("model",))


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


def of_the_model(condition: Condition) -> tuple[str, ...]:
    """What a refusal about no feature names."""
    return () if condition.involves else ("model",)


# --- the plan ----------------------------------------------------------------------------------------------------


def _versions(choice: Choice, family: str, catalog: Catalog) -> tuple[tuple[str, str], ...]:
    record = catalog.family_plugin(family)
    records = [judged.offer.record for judged in choice.chosen] + ([record] if record is not None else [])
    return tuple(sorted({(record.name, record.version) for record in records}))


def _not_activatable(choice: Choice, family: str, catalog: Catalog) -> tuple[str, ...]:
    features = [judged.planned.name for judged in choice.chosen if judged.planned.not_activatable]
    return tuple(sorted([*features, *([family] if catalog.family_state(family) else [])]))


def _facts_used(
    choice: Choice, conditions: Iterable[Condition], facts: Facts
) -> tuple[tuple[str, Any, str], ...]:
    """The facts that features were judged by: in their conditions, in those of their effects, and in those under which
    they do nothing.
    """
    effects = [rule for judged in choice.chosen for rule in judged.offer.feature.effects]
    looked_at = [*conditions, *(c for judged in choice.chosen for c in judged.planned.conditions)]
    looked_at += [rule.when for rule in effects if rule.when is not None]
    looked_at += [condition for judged in choice.chosen for condition in judged.offer.feature.inert]
    names = {ref.name for condition in looked_at for ref in condition.refs() if ref.kind == "fact"}
    return tuple((name, facts.get(name), facts.source(name)) for name in sorted(names) if name in facts)
