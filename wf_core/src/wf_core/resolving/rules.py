"""The rule table: pairs of effects, exclusive slots, and what an effect needs, as data of the core and of manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations
from typing import Any

import attrs

from wf_core import data
from wf_core.manifests.conditions import Condition
from wf_core.manifests.declarations import Rule
from wf_core.manifests.effects import Effect
from wf_core.manifests.vocabulary import is_inside
from wf_core.resolving.plan import Violation

# An effect that occupies this many ranks or fewer is as good as none.
_ONE_RANK = 1


@attrs.frozen
class Subject:
    """One feature as the rules see it: the names to give in a refusal, its slot, and its effects."""

    feature: str
    names: tuple[str, ...]
    slot: str = ""
    effects: tuple[Effect, ...] = ()


@cache
def core_rules() -> tuple[Rule, ...]:
    """The core's own table."""
    rows = data.table("rules")["rule"]
    return tuple(Rule(**{**row, "pair": tuple(row.get("pair", ())), "needs": _needs(row)}) for row in rows)


def needs_of(effects: Iterable[Effect], rules: Iterable[Rule]) -> tuple[Condition, ...]:
    """The conditions that the rules lay on these effects, each with its rule's code and reason."""
    names = {effect.name for effect in effects}
    return tuple(
        attrs.evolve(rule.needs, code=rule.code, reason=rule.reason)
        for rule in rules
        if rule.needs is not None and rule.effect in names
    )


def judge(subjects: Iterable[Subject], rules: Iterable[Rule]) -> tuple[Violation, ...]:
    """Every rule that two of the subjects break, in order of the rules and of the subjects' names."""
    ordered = sorted(subjects, key=lambda subject: subject.feature)
    found = [v for rule in rules for pair in combinations(ordered, 2) for v in _broken(rule, *pair)]
    return tuple(dict.fromkeys(found))


def _broken(rule: Rule, one: Subject, other: Subject) -> Iterator[Violation]:
    names = tuple(dict.fromkeys((*one.names, *other.names)))
    if rule.slot:
        if one.slot and one.slot == other.slot and rule.slot in ("*", one.slot):
            fix = f"Keep one of {one.feature} and {other.feature}."
            yield Violation(rule.code, rule.level, rule.reason.replace("{slot}", one.slot), names, fix)
        return
    if rule.pair and (_meets(rule, one.effects, other.effects) or _meets(rule, other.effects, one.effects)):
        fix = f"Leave out {one.feature} or {other.feature}."
        yield Violation(rule.code, rule.level, rule.reason, names, fix if rule.level == "forbid" else "")


def _needs(row: Mapping[str, Any]) -> Condition | None:
    return Condition.parse(row["needs"], top=False) if "needs" in row else None


def _meets(rule: Rule, left: tuple[Effect, ...], right: tuple[Effect, ...]) -> bool:
    first, second = rule.pair
    return any(
        a.name == first and b.name == second and (rule.scope == "any" or is_inside(b.seam, a.seam))
        for a in left
        for b in right
        if _counts(a) and _counts(b)
    )


def _counts(effect: Effect) -> bool:
    alone = isinstance(effect.numbers[0], int) and effect.numbers[0] <= _ONE_RANK if effect.numbers else False
    return not (effect.name == "occupies-ranks" and alone)
