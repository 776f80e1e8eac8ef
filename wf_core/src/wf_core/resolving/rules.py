"""The rule table: pairs of effects, exclusive slots, what an effect needs, and aggregates, as data.

The table is the core's and that of the manifests. A rule sees a feature as a `Subject`: its slot and its effects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

import attrs

from wf_core import data
from wf_core.facts import Facts
from wf_core.manifests.conditions import Condition, Verdict
from wf_core.manifests.declarations import FeatureDecl, Rule
from wf_core.manifests.effects import Effect, vocabulary
from wf_core.manifests.manifest import read_rule
from wf_core.manifests.toml_reader import Table
from wf_core.manifests.vocabulary import is_inside
from wf_core.resolving.plan import Chain, Change, Violation
from wf_core.values import show

LOSSY, EXPERIMENTAL, NOT_FOR_TRAINING = "lossy", "experimental", "not-for-training"
TRAINING_SAFE = "training-safe"
UNIFORM, RANKS_CHECKED, RANKS_UNCHECKED = "rank-uniform-decision", "ranks-checked", "ranks-unchecked"
UNKNOWN_CONDITION = "WF-F002"


@attrs.frozen
class Cause:
    """An effect of a feature, the request's keys that give it its options, and changes after which it is not there."""

    effect: Effect
    keys: tuple[str, ...] = ()
    ways_out: tuple[Change, ...] = ()


@attrs.frozen(slots=False)
class Subject:
    """One feature as the rules see it. ``names`` are given in a refusal, ``asked`` are its keys as they were typed."""

    feature: str
    names: tuple[str, ...]
    slot: str = ""
    causes: tuple[Cause, ...] = ()
    asked: tuple[str, ...] = ()

    @cached_property
    def by_effect(self) -> Mapping[str, tuple[Cause, ...]]:
        """Its effects that count, by name."""
        found: dict[str, tuple[Cause, ...]] = {}
        for cause in self.causes:
            if _counts(cause.effect):
                found[cause.effect.name] = (*found.get(cause.effect.name, ()), cause)
        return found

    def chain(self, cause: Cause | None = None, last: str = "") -> Chain:
        """From the user's keys to the feature and to one of its effects, or to ``last``."""
        return Chain(self.asked, self.feature, str(cause.effect) if cause is not None else last)

    def named(self, cause: Cause | None = None) -> tuple[str, ...]:
        """What a refusal about that effect names."""
        return tuple(dict.fromkeys((*self.names, *(cause.keys if cause is not None else ()))))


Having = list[tuple[Subject, Cause]]


def _counts(effect: Effect) -> bool:
    """An effect with a number that is 1 or less is as good as none: one rank is no parallelism."""
    return not effect.numbers or any(not isinstance(number, int) or number > 1 for number in effect.numbers)


def derived_effects(feature: FeatureDecl, declared: Iterable[Effect]) -> tuple[Effect, ...]:
    """The effects that follow from what a feature says elsewhere: its tier, its flags, and what it does not say."""
    names = {effect.name for effect in declared}
    follows = {
        LOSSY: feature.tier == "approximate",
        EXPERIMENTAL: feature.experimental,
        NOT_FOR_TRAINING: TRAINING_SAFE not in names,
        RANKS_UNCHECKED: UNIFORM in names and RANKS_CHECKED not in names,
    }
    return tuple(Effect(name) for name, holds in follows.items() if holds)


@cache
def core_rules() -> tuple[Rule, ...]:
    """The core's own table."""
    path = Path(data.__file__).with_name("rules.toml")
    return tuple(read_rule(row, vocabulary()) for row in Table(data.table("rules"), path).tables("rule"))


def needs_of(effects: Iterable[Effect], rules: Iterable[Rule]) -> tuple[Condition, ...]:
    """The conditions that the rules lay on a feature with these effects, each with its rule's code and reason."""
    names = {effect.name for effect in effects}
    return tuple(_condition(rule) for rule in rules if rule.effect in names and not rule.aggregate)


def needs_of_facts(rules: Iterable[Rule], facts: Facts) -> tuple[Condition, ...]:
    """The conditions of rules about the facts alone, where ``when`` is met."""
    return tuple(
        _condition(rule)
        for rule in rules
        if rule.when is not None and not rule.effect and rule.when.judge(facts, {}).state == "met"
    )


def _condition(rule: Rule) -> Condition:
    assert rule.needs is not None
    return attrs.evolve(rule.needs, code=rule.code, reason=rule.reason, involves=rule.involves)


def judge_pair(one: Subject, other: Subject, rules: Iterable[Rule]) -> Iterator[Violation]:
    """Every rule that two features break together."""
    for rule in rules:
        if rule.slot:
            yield from _slot(rule, one, other)
        elif rule.pair:
            yield from _pair(rule, one, other) or _pair(rule, other, one)


def _slot(rule: Rule, one: Subject, other: Subject) -> Iterator[Violation]:
    if one.slot and one.slot == other.slot and rule.slot in ("*", one.slot):
        yield Violation(
            rule.code,
            rule.level,
            rule.reason.replace("{slot}", one.slot),
            tuple(dict.fromkeys((*one.names, *other.names, *rule.involves))),
            f"Keep one of {one.feature} and {other.feature}.",
            tuple(subject.chain(last=f"the place {subject.slot}") for subject in (one, other)),
        )


def _pair(rule: Rule, left: Subject, right: Subject) -> tuple[Violation, ...]:
    first, second = rule.pair
    met = next(
        (
            (a, b)
            for a in left.by_effect.get(first, ())
            for b in right.by_effect.get(second, ())
            if rule.scope == "any" or is_inside(b.effect.seam, a.effect.seam)
        ),
        None,
    )
    if met is None:
        return ()
    involves = (*left.named(met[0]), *right.named(met[1]), *rule.involves)
    fix = f"Leave out {left.feature} or {right.feature}." if rule.level == "forbid" else ""
    chains = (left.chain(met[0]), right.chain(met[1]))
    repairs = (*met[0].ways_out, *met[1].ways_out)
    return (
        Violation(rule.code, rule.level, rule.reason, tuple(dict.fromkeys(involves)), fix, chains, repairs),
    )


def judge_aggregates(subjects: Sequence[Subject], rules: Iterable[Rule], facts: Facts) -> Iterator[Violation]:
    """Every aggregate over all the features that the facts contradict."""
    for rule, having, verdict in _compared(subjects, rules, facts):
        if verdict.state == "unmet":
            found = _broken(rule, rule.code, verdict.reason, having)
            yield attrs.evolve(found, repairs=tuple(_fitting(rule, facts, [cause for _, cause in having])))


def undecided_aggregates(
    subjects: Sequence[Subject], rules: Iterable[Rule], facts: Facts
) -> Iterator[Violation]:
    """Every aggregate over all the features that the facts do not decide, for when there is no later moment."""
    for rule, having, verdict in _compared(subjects, rules, facts):
        if verdict.state == "unknown":
            yield _broken(rule, UNKNOWN_CONDITION, stayed_unknown(verdict), having)


def stayed_unknown(verdict: Verdict) -> str:
    """The reason of a violation for what could not be judged."""
    return f"{', '.join(verdict.missing)} stayed unknown, so that this cannot be ruled out: {verdict.reason}"


def _compared(
    subjects: Sequence[Subject], rules: Iterable[Rule], facts: Facts
) -> Iterator[tuple[Rule, Having, Verdict]]:
    """Each aggregate that some feature has a number for, with those that have one, and what its comparison says."""
    for rule in rules:
        if not rule.aggregate or rule.needs is None:
            continue
        having = [(s, cause) for s in subjects for cause in s.by_effect.get(rule.effect, ())]
        numbers = [int(cause.effect.numbers[0]) for _, cause in having]
        condition = attrs.evolve(rule.needs, reason=rule.reason)
        for total in _totals(rule.aggregate, numbers) if numbers else ():
            verdict = condition.judge(facts, {"total": total})
            yield rule, having, attrs.evolve(verdict, reason=verdict.reason.replace("{total}", show(total)))


def _broken(rule: Rule, code: str, reason: str, having: Having) -> Violation:
    names = (name for subject, cause in having for name in subject.named(cause))
    involves = tuple(dict.fromkeys((*names, *rule.involves)))
    chains = tuple(subject.chain(cause) for subject, cause in having)
    return Violation(code, rule.level, reason, involves, chains=chains)


def _fitting(rule: Rule, facts: Facts, causes: Sequence[Cause]) -> Iterator[Change]:
    """The number of each feature with which a product would be what it is compared with."""
    assert rule.needs is not None
    wanted = facts.get(next(rule.needs.refs()).name)
    for cause in causes if rule.aggregate == "product" and isinstance(wanted, int) else ():
        others = math.prod(int(other.effect.numbers[0]) for other in causes if other is not cause)
        if cause.keys and wanted % others == 0 and wanted // others > 1:
            yield Change(set=((cause.keys[0], wanted // others),))


def _totals(aggregate: str, numbers: list[int]) -> list[int]:
    """The number to compare; for "equal" each different one, so that all of them must compare alike."""
    if aggregate == "equal":
        return sorted(set(numbers))
    return [math.prod(numbers) if aggregate == "product" else sum(numbers)]
