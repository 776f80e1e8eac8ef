"""Choosing one candidate for each demand so that no rule is broken, or saying why that cannot be.

The rules become clauses: a demand needs one of its candidates, a candidate that a condition rules out is false, two
that break a rule together are not both true. Where every demand has one candidate, unit propagation decides alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations

import attrs

from wf_core.facts import Facts
from wf_core.manifests.declarations import Rule
from wf_core.resolving.judging import Judged
from wf_core.resolving.plan import Chain, Violation
from wf_core.resolving.rules import Subject, judge_aggregates, judge_pair
from wf_core.resolving.solver import Clause, Model, conflicts, prefer, satisfiable

NO_CHOICE = "WF-R011"
MOST_CONFLICTS = 5


@attrs.frozen
class Choice:
    """The chosen candidates, one for each demand, and what stands against them (nothing that forbids, if legal)."""

    chosen: tuple[Judged, ...]
    violations: tuple[Violation, ...]


def choose(
    groups: Sequence[Sequence[Judged]], rules: Sequence[Rule], facts: Facts, *, strict: bool = False
) -> Choice:
    """One candidate of each group, best first, under the rules. Every group holds at least one candidate.

    With ``strict`` what is untested is no warning: a candidate without is chosen where there is one.
    """
    return _Choosing(groups, rules, facts, strict).choice()


class _Choosing:
    """The clauses of one request. Candidates are the variables, numbered from 1 in order of groups and preference."""

    def __init__(
        self, groups: Sequence[Sequence[Judged]], rules: Sequence[Rule], facts: Facts, strict: bool
    ) -> None:
        self.groups = [tuple(group) for group in groups]
        self.rules = rules
        self.facts = facts
        self.strict = strict
        self.candidates: dict[int, Judged] = {}
        self.members: list[tuple[int, ...]] = []
        for group in self.groups:
            first = len(self.candidates) + 1
            numbers = tuple(range(first, first + len(group)))
            self.candidates.update(zip(numbers, group, strict=True))
            self.members.append(numbers)
        self.hard = [*self.members, *(c for numbers in self.members for c in _at_most_one(numbers))]
        self.soft: dict[Clause, list[Violation]] = {}
        self.warnings: dict[tuple[int, int], list[Violation]] = {}
        self._write_clauses()

    def _write_clauses(self) -> None:
        for number, judged in self.candidates.items():
            if judged.violations:
                self.soft[(-number,)] = list(judged.violations)
        group_of = {number: index for index, numbers in enumerate(self.members) for number in numbers}
        for one, other in self._meeting():
            if group_of[one] == group_of[other]:
                continue
            subjects = self.candidates[one].subject, self.candidates[other].subject
            found = list(judge_pair(*subjects, self._rules_about(*subjects)))
            if any(self.strict or violation.level == "forbid" for violation in found):
                self.soft[(-one, -other)] = found
            elif found:
                self.warnings[(one, other)] = found

    def _meeting(self) -> Iterator[tuple[int, int]]:
        """The pairs that share a slot or have effects that some rule is about, each once, in order."""
        partners: dict[str, set[str]] = {}
        for rule in self.rules:
            if rule.pair:
                partners.setdefault(rule.pair[0], set()).add(rule.pair[1])
                partners.setdefault(rule.pair[1], set()).add(rule.pair[0])
        words = {number: set(j.subject.by_effect) for number, j in self.candidates.items()}
        rivals = {n: set().union(*(partners.get(word, ()) for word in own)) for n, own in words.items()}
        for one, other in combinations(self.candidates, 2):
            slot = self.candidates[one].subject.slot
            same_slot = bool(slot) and slot == self.candidates[other].subject.slot
            if same_slot or not rivals[one].isdisjoint(words[other]):
                yield one, other

    def _rules_about(self, *subjects: Subject) -> Iterator[Rule]:
        """The rules that could be about two features, as they stand in the table: for slots, or of their effects."""
        words = {word for subject in subjects for word in subject.by_effect}
        places = {place for word in ("", *words) for place in self._places.get(word, ())}
        return (self.rules[place] for place in sorted(places))

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """Where in the table the rules stand, by the first of two effects; those for slots by ""."""
        found: dict[str, list[int]] = {}
        for place, rule in enumerate(self.rules):
            if rule.slot or rule.pair:
                found.setdefault("" if rule.slot else rule.pair[0], []).append(place)
        return found

    def choice(self) -> Choice:
        order = [number for numbers in self.members for number in numbers]
        model = prefer([*self.hard, *self.soft], order, lazy=self._broken_aggregate)
        if model is None:
            return Choice(self._first(), tuple(dict.fromkeys(self._reasons())))
        chosen = tuple(number for number in order if number in model)
        warnings = [v for pair in combinations(chosen, 2) for v in self.warnings.get(pair, ())]
        return Choice(tuple(self.candidates[number] for number in chosen), tuple(dict.fromkeys(warnings)))

    def _broken_aggregate(self, model: Model) -> Clause | None:
        """Which candidates with a number are chosen decides an aggregate: the clause says "not exactly these"."""
        chosen = [number for number in self.candidates if number in model]
        if not any(self._aggregates(chosen)):
            return None
        return tuple(-number if number in model else number for number in self._counted)

    @cached_property
    def _counted(self) -> tuple[int, ...]:
        """The candidates with an effect that some aggregate is taken over."""
        effects = {rule.effect for rule in self.rules if rule.aggregate}
        return tuple(n for n, judged in self.candidates.items() if effects & {*judged.subject.by_effect})

    def _aggregates(self, chosen: Sequence[int]) -> Iterator[Violation]:
        return judge_aggregates(
            [self.candidates[number].subject for number in chosen], self.rules, self.facts
        )

    def _first(self) -> tuple[Judged, ...]:
        return tuple(group[0] for group in self.groups)

    # --- reasons -----------------------------------------------------------------------------------------------

    def _reasons(self) -> Iterator[Violation]:
        """Every reason among the demands that leave no choice, then each choice that all its candidates lose."""
        forced = {numbers[0] for numbers in self.members if len(numbers) == 1}
        broken = [clause for clause in self.soft if all(-literal in forced for literal in clause)]
        for clause in broken:
            yield from self.soft[clause]
        warned = (v for pair, found in self.warnings.items() if {*pair} <= forced for v in found)
        yield from warned
        aggregates = list(self._aggregates(sorted(forced)))
        yield from aggregates
        told = {*broken}
        left = [clause for clause in self.soft if clause not in told]
        lost = conflicts(self.hard, left, lambda _: True, MOST_CONFLICTS)
        for conflict in lost:
            yield self._no_choice([left[index] for index in conflict])
        if lost or aggregates:
            return
        if (
            satisfiable([*self.hard, *left], lazy=self._broken_aggregate) is None
        ):  # only numbers forbid a choice
            order = [number for numbers in self.members for number in numbers]
            best = prefer([*self.hard, *left], order) or frozenset()
            yield from self._aggregates([number for number in order if number in best])

    def _no_choice(self, clauses: Sequence[Clause]) -> Violation:
        """Several clauses that together leave a demand without a candidate, as one sentence."""
        touched = {-literal for clause in clauses for literal in clause}
        groups = [numbers for numbers in self.members if len(numbers) > 1 and touched & {*numbers}]
        lost = [self.candidates[number] for numbers in groups for number in numbers]
        asked = " and ".join(dict.fromkeys(" ".join(judged.subject.asked) for judged in lost))
        why = [(self._names_in(c, groups), self.soft[c][0].reason.rstrip(".")) for c in clauses]
        names = dict.fromkeys(name for clause in clauses for v in self.soft[clause] for name in v.involves)
        keys = [self._asked(clause, groups) for clause in clauses]
        chains = tuple(Chain(asked_by, *each) for asked_by, each in zip(keys, why, strict=True))
        reason = f"{asked} leaves no choice; {'; '.join(f'{names_in}: {text}' for names_in, text in why)}."
        return Violation(NO_CHOICE, "forbid", reason, tuple(names), chains=chains)

    def _asked(self, clause: Clause, groups: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
        """The keys of the choice that a clause takes a candidate from."""
        own = (-literal for literal in clause for numbers in groups if -literal in numbers)
        return tuple(dict.fromkeys(key for number in own for key in self.candidates[number].subject.asked))

    def _names_in(self, clause: Clause, groups: Sequence[tuple[int, ...]]) -> str:
        of_choice = {number for numbers in groups for number in numbers}
        own = [self.candidates[-literal].subject.feature for literal in clause if -literal in of_choice]
        other = [self.candidates[-literal].subject.feature for literal in clause if -literal not in of_choice]
        return " and ".join(own) + (f" (with {', '.join(other)})" if other else "")


def _at_most_one(numbers: Sequence[int]) -> Iterator[Clause]:
    return ((-one, -other) for one, other in combinations(numbers, 2))
