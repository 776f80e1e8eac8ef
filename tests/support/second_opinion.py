"""A second opinion on requests over generated catalogs, without any of the resolver's code.

It reads the same table of rules, and is otherwise written from what the table's head says: every combination of
candidates is tried where there are few features, and python-sat is asked where there are many.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from pysat.solvers import Minisat22

from support.worlds import FACTS, SELECTORS, Toy, World
from wf_core import data

NESTING = ("guidance", "denoiser", "stack", "block", "branch", "attention")
CORE_RULES: list[dict[str, Any]] = tomllib.loads(
    Path(data.__file__).with_name("rules.toml").read_text(encoding="utf-8")
)["rule"]
MOST_COMBINATIONS = 500


class Opinion:
    """Whether features go together, from the table of rules alone."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules = [*CORE_RULES, *(world.rules if any(toy.plugin == 0 for toy in world.toys) else ())]

    def groups(self) -> list[list[Toy]]:
        """What each key asks for, candidates best first, in order of the keys."""
        return [self._candidates(key) for key in sorted(self.world.asked)]

    def _candidates(self, key: str) -> list[Toy]:
        if key not in SELECTORS:
            return [toy for toy in self.world.toys if toy.name == key]
        members = [toy for toy in self.world.toys if toy.group == key]
        members = [toy for toy in members if {"*", "toy"} & {*toy.families}] or members
        members = [toy for toy in members if not toy.state] or members
        return sorted(members, key=lambda toy: (toy.order, toy.name))

    def alone(self, toy: Toy) -> set[str]:
        """The codes of what forbids a feature by itself."""
        found = {f"TOY-{toy.name.upper()}"} if toy.wants > FACTS["toy.number"] else set()
        if not {"*", "toy"} & {*toy.families}:
            found.add("WF-M001")
        for rule in self.rules:
            if "effect" in rule and "aggregate" not in rule and toy.has(rule["effect"]):
                needs = rule["needs"]
                if needs["fact"] == "request.profile" and self.world.profile == needs["ne"]:
                    found.add(rule["code"])
        return found

    def together(self, one: Toy, other: Toy) -> set[tuple[str, str]]:
        """The codes and levels of what two features break."""
        found = set()
        for rule in self.rules:
            if (rule.get("slot") == "*" and one.slot and one.slot == other.slot) or (
                "pair" in rule and (_breaks(rule, one, other) or _breaks(rule, other, one))
            ):
                found.add((rule["code"], rule["level"]))
        return found

    def forbids(self, one: Toy, other: Toy) -> bool:
        strict = self.world.profile == "official"
        return any(strict or level == "forbid" for _, level in self.together(one, other))

    def totals(self, chosen: Sequence[Toy]) -> set[str]:
        """The codes of the aggregates that the chosen features break."""
        found = set()
        for rule in self.rules:
            if "aggregate" not in rule:
                continue
            numbers = [number for toy in chosen for number, _ in toy.has(rule["effect"])]
            needs = rule["needs"]
            fact = self.world.ranks if needs["fact"] == "process.world" else FACTS[needs["fact"]]
            totals = {
                "product": [math.prod(numbers)],
                "sum": [sum(numbers)],
                "equal": sorted({*numbers}),
            }[rule["aggregate"]]
            holds = {"eq": fact.__eq__, "ge": fact.__ge__, "le": fact.__le__}
            compare = next(holds[word] for word in holds if word in needs)
            if numbers and not all(compare(total) for total in totals):
                found.add(rule["code"])
        return found

    def fits(self, chosen: Sequence[Toy]) -> bool:
        return not (
            any(self.alone(toy) for toy in chosen)
            or any(self.forbids(one, other) for one, other in combinations(chosen, 2))
            or self.totals(chosen)
        )

    def leaves_a_choice(self, chosen: Sequence[Toy], forced: set[str]) -> bool:
        """Whether nothing but totals, and what stands among the forced alone, forbids a combination."""
        alone = any(self.alone(toy) for toy in chosen if toy.name not in forced)
        return not alone and not any(
            self.forbids(one, other)
            for one, other in combinations(chosen, 2)
            if not {one.name, other.name} <= forced
        )

    def aggregates(self) -> set[str]:
        return {rule["code"] for rule in self.rules if "aggregate" in rule}

    def best(self) -> tuple[str, ...] | None:
        """The first combination that fits, the best candidate of the first key deciding first."""
        return next(
            (tuple(t.name for t in chosen) for chosen in product(*self.groups()) if self.fits(chosen)), None
        )

    def best_by_sat(self) -> tuple[str, ...] | None:
        """The same by python-sat; an aggregate is learned from each combination that breaks it."""
        groups = self.groups()
        toys = [toy for group in groups for toy in group]
        number = {toy.name: n for n, toy in enumerate(toys, 1)}
        with Minisat22() as solver:
            for group in groups:
                solver.add_clause([number[toy.name] for toy in group])
                for one, other in combinations(group, 2):
                    solver.add_clause([-number[one.name], -number[other.name]])
            for toy in toys:
                if self.alone(toy):
                    solver.add_clause([-number[toy.name]])
            for one, other in combinations(toys, 2):
                if self.forbids(one, other):
                    solver.add_clause([-number[one.name], -number[other.name]])
            held: list[int] = []
            chosen = self._by_sat(solver, toys, held)
            if chosen is None:
                return None
            for group in groups:
                for toy in group:
                    found = self._by_sat(solver, toys, [*held, number[toy.name]])
                    if found is not None:
                        held.append(number[toy.name])
                        chosen = found
                        break
            return tuple(toy.name for toy in chosen)

    def _by_sat(self, solver: Any, toys: Sequence[Toy], held: Sequence[int]) -> list[Toy] | None:
        while solver.solve(assumptions=list(held)):
            true = {literal for literal in solver.get_model() if literal > 0}
            chosen = [toy for number, toy in enumerate(toys, 1) if number in true]
            if not self.totals(chosen):
                return chosen
            counted = [
                n for n, toy in enumerate(toys, 1) if toy.has("occupies-ranks") or toy.has("toy-number")
            ]
            solver.add_clause([-n if n in true else n for n in counted])
        return None


def _breaks(rule: dict[str, Any], left: Toy, right: Toy) -> bool:
    first, second = rule["pair"]
    return any(
        rule.get("scope") != "inside" or _inside(inner, outer)
        for _, outer in left.has(first)
        for _, inner in right.has(second)
    )


def _inside(seam: str, outer: str) -> bool:
    """Everywhere is inside everything and around everything; else by the line of nested seams."""
    if not seam or not outer or seam == outer:
        return True
    return seam in NESTING and outer in NESTING and NESTING.index(seam) > NESTING.index(outer)
