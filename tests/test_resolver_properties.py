"""Requests on generated catalogs, decided a second time without any of the resolver's code.

The second opinion reads the same table of rules, and is otherwise written from what the table's head says: every
combination of candidates is tried where there are few features, and python-sat is asked where there are many.
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import attrs
import pytest
from pysat.solvers import Minisat22

from support.plugins import write_plugin
from wf_core import Refused, data
from wf_core.facts import Facts
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.resolving.deciding import Decision, decide
from wf_core.resolving.plan import Refusal
from wf_core.resolving.resolve import resolve

SEAMS = ("", "guidance", "denoiser", "stack", "block", "attention", "vae.decode")
NESTING = ("guidance", "denoiser", "stack", "block", "branch", "attention")
WORDS = (
    "captures-graph", "captures-graph", "host-state", "skips-blocks", "holds-request-tensors", "collectives",
    "moves-parameters", "weights-as-buffers", "replaces-linear", "reloads-weights", "places-layers",
    "rank-local-decision", "rank-uniform-decision", "splits-guidance", "skips-guidance", "merges-weights",
    "training-safe", "training-safe", "occupies-ranks", "occupies-ranks",
)  # fmt: skip
OWN_WORDS = ("toy-left", "toy-right", "toy-number")
SELECTORS = ("approximate_attention", "attention_backend", "feature_cache", "quantization")
SLOTS = ("", "", "", "attention", "cache")
CORE_RULES: list[dict[str, Any]] = tomllib.loads(
    Path(data.__file__).with_name("rules.toml").read_text(encoding="utf-8")
)["rule"]
MOST_COMBINATIONS = 500
FACTS = {"model.family": "toy", "model.id": "toy-1b", "model.hooked": "", "toy.number": 3, "toy.limit": 6}


@attrs.frozen
class Toy:
    """One generated feature. ``wants`` is a condition on a fact that is 3, ``group`` a selector that may choose it."""

    name: str
    plugin: int
    slot: str
    effects: tuple[tuple[str, int, str], ...]
    tier: str
    experimental: bool
    wants: int
    group: str
    order: int
    families: tuple[str, ...]
    state: str

    def has(self, word: str) -> list[tuple[int, str]]:
        """The number and seam of each effect of that name that counts; what follows from the tier is one too."""
        found = [(number, seam) for name, number, seam in self.effects if name == word]
        if word in ("occupies-ranks", "toy-number"):
            return [(number, seam) for number, seam in found if number > 1]
        safe = any(name == "training-safe" for name, _, _ in self.effects)
        derived = {
            "lossy": self.tier == "approximate",
            "experimental": self.experimental,
            "not-for-training": not safe,
        }
        return [(0, "")] if derived.get(word) else found

    def manifest(self) -> str:
        effects = [
            name + (f"({number})" if number else "") + (f"@{seam}" if seam else "")
            for name, number, seam in self.effects
        ]
        lines = [
            "[[feature]]",
            f'name = "{self.name}"',
            f'tier = "{self.tier}"',
            'tolerance = "none: generated"',
            f"experimental = {str(self.experimental).lower()}",
            f'slot = "{self.slot}"',
            f"effects = {json.dumps(effects)}",
            f"families = {json.dumps(self.families)}",
            'evidence = [{ counter = "calls", at_least = 1 }]',
        ]
        if self.state:
            lines.append(f'state = "{self.state}"')
        if self.group:
            names = f'values = ["{self.name}"], groups = ["auto"]'
            lines.append(f'select = [{{ switch = "{self.group}", {names}, order = {self.order} }}]')
        lines += ["[[feature.condition]]", 'fact = "toy.number"', f"ge = {self.wants}"]
        lines += ['reason = "Too small a number."', f'code = "TOY-{self.name.upper()}"']
        lines += ["[[feature.condition]]", 'fact = "toy.never_known"', "eq = 1", 'reason = "Never known."']
        if not self.group:
            lines += [
                "[[switch]]",
                f'name = "{self.name}"',
                f'feature = "{self.name}"',
                'form = "flag"',
                "off = [false]",
            ]
        return "\n".join(lines) + "\n"


@attrs.frozen
class World:
    """Generated features with further rules, and a request: which features and groups it asks for."""

    toys: tuple[Toy, ...]
    rules: tuple[dict[str, Any], ...]
    asked: tuple[str, ...]
    profile: str
    ranks: int

    def request(self) -> dict[str, Any]:
        keys = {name: "auto" if name in SELECTORS else True for name in self.asked}
        return {**keys, "profile": self.profile} if self.profile != "none" else keys

    def facts(self) -> Facts:
        return Facts.of({**FACTS, "process.world": self.ranks}, "test")

    def write(self, root: Path) -> list[str]:
        """Writes a folder for each plugin; returns the folders."""
        family = '[family]\nname = "toy"\ntransformer_classes = { ToyTransformer = "toy" }\n'
        family += f"seams = {json.dumps([seam for seam in SEAMS if seam])}\n"
        folders = [write_plugin(root / "family", "toy", 'kind = "model-family"\n' + family, "")]
        for number in sorted({toy.plugin for toy in self.toys}):
            text = 'kind = "fusion"\n'
            if number == 0:
                text += _own_words(self.rules)
            text += "".join(toy.manifest() for toy in self.toys if toy.plugin == number)
            folders.append(write_plugin(root / str(number), f"toys-{number}", text, "raise ImportError\n"))
        return [str(folder) for folder in folders]


def _own_words(rules: Sequence[dict[str, Any]]) -> str:
    lines = []
    for word in OWN_WORDS:
        lines += ["[[effect]]", f'name = "{word}"', 'doc = "Generated."']
        lines += ["numbers = 1"] if word == "toy-number" else []
    for rule in rules:
        lines.append("[[rule]]")
        for key, value in rule.items():
            if key == "needs":
                [(comparison, operand)] = [(k, v) for k, v in value.items() if k != "fact"]
                lines.append(
                    f'needs = {{ fact = "{value["fact"]}", {comparison} = {{ option = "{operand["option"]}" }} }}'
                )
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


# --- generating ------------------------------------------------------------------------------------------------------


def generated(seed: int, most: int) -> World:
    """Features in up to five plugins, sparse enough that requests of all of them are now legal and now not."""
    draw = random.Random(seed)
    count = most if most > 12 else draw.randint(1, most)
    density = draw.choice((0.3, 0.8, 1.5)) if most <= 12 else draw.choice((0.05, 0.15, 0.3))
    losses = draw.choice((0.0, 0.1, 0.3))
    toys = tuple(_toy(draw, number, density, losses) for number in range(count))
    singles = [toy.name for toy in toys if not toy.group]
    groups = sorted({toy.group for toy in toys if toy.group})
    share = draw.choice((0.4, 0.7, 1.0))
    asked = [name for name in singles if draw.random() < share] + [g for g in groups if draw.random() < 0.8]
    profile = draw.choice(("none", "none", "none", "official", "official", "training"))
    return World(toys, _rules(draw), tuple(asked), profile, draw.choice((1, 2, 2, 4)))


def _toy(draw: random.Random, number: int, density: float, losses: float) -> Toy:
    plugin = draw.randrange(5)
    words = (*WORDS, *OWN_WORDS * 2) if plugin == 0 else WORDS
    names = {draw.choice(words) for _ in range(3) if draw.random() < density / 2}
    effects = tuple(
        (
            word,
            draw.choice((1, 2, 2, 4)) if word in ("occupies-ranks", "toy-number") else 0,
            draw.choice(SEAMS),
        )
        for word in sorted(names)
    )
    return Toy(
        name=f"toy{number}",
        plugin=plugin,
        slot=draw.choice(SLOTS) if draw.random() < density else "",
        effects=effects,
        tier="approximate" if draw.random() < losses else draw.choice(("exact", "equivalent")),
        experimental=draw.random() < losses / 2,
        wants=4 if draw.random() < 0.08 else 2,
        group=draw.choice(("", "", *SELECTORS)),
        order=draw.randrange(5),
        families=draw.choice((("*",), ("toy",), ("toy", "other"), ("*",), ("other",)))
        if draw.random() < 0.2
        else ("*",),
        state="unavailable: generated" if draw.random() < 0.15 else "",
    )


def _rules(draw: random.Random) -> tuple[dict[str, Any], ...]:
    def pair() -> list[str]:
        return draw.sample([draw.choice(OWN_WORDS[:2]), draw.choice((*WORDS, *OWN_WORDS))], 2)

    rules: list[dict[str, Any]] = [
        {
            "code": f"TOY-{number}",
            "level": draw.choice(("forbid", "untested")),
            "pair": pair(),
            "scope": draw.choice(("any", "inside")),
            "reason": "Generated.",
        }
        for number in range(draw.randrange(3))
    ]
    if draw.random() < 0.6:
        needs = {"fact": "toy.limit", draw.choice(("ge", "le", "eq")): {"option": "total"}}
        aggregate = draw.choice(("product", "sum", "equal"))
        rules.append(
            {
                "code": "TOY-TOTAL",
                "level": "forbid",
                "aggregate": aggregate,
                "effect": "toy-number",
                "needs": needs,
                "reason": "Generated.",
            }
        )
    return tuple(rules)


# --- the second opinion -----------------------------------------------------------------------------------------------


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


# --- the tests ------------------------------------------------------------------------------------------------------


def catalog(folders: Sequence[str]) -> Catalog:
    found = discover(list(folders), {})
    assert [record.reason for record in found.plugins if record.state != "available"] == []
    return Catalog.of(found)


def check(world: World, decision: Decision, best: tuple[str, ...] | None) -> None:
    """The verdict, the candidates chosen, and of a refusal that what it says is so and that nothing is left out."""
    opinion = Opinion(world)
    assert decision.legal == (best is not None), [str(violation) for violation in decision.violations]
    if decision.plan is not None and best is not None:
        assert sorted(feature.name for feature in decision.plan.features) == sorted(best)
        assert {v.level for v in decision.violations} <= {"untested"}
    forced = [group[0] for group in opinion.groups() if len(group) == 1]
    among_forced = {code for toy in forced for code in opinion.alone(toy)} | {
        code for pair in combinations(forced, 2) for code, _ in opinion.together(*pair)
    }
    said = {violation.code for violation in decision.violations}
    if not decision.legal:
        assert said >= among_forced | opinion.totals(forced)
        said -= among_forced | opinion.totals(forced)
        assert said <= {"WF-R011", *opinion.aggregates()}
        check_choice(opinion, said)
    elif len(forced) == len(opinion.groups()):
        assert said == among_forced
    for violation in decision.violations:
        assert violation.involves
        assert violation.reason.endswith(".")


def check_choice(opinion: Opinion, said: set[str]) -> None:
    """What is said of choices, beside what the keys without a choice break already: no more and no less than is so."""
    groups = opinion.groups()
    if math.prod(map(len, groups)) > MOST_COMBINATIONS:
        return
    forced = {group[0].name for group in groups if len(group) == 1}
    possible = [chosen for chosen in product(*groups) if opinion.leaves_a_choice(chosen, forced)]
    assert ("WF-R011" in said) == (not possible)
    forced_total = opinion.totals([group[0] for group in groups if len(group) == 1])
    if possible and not forced_total:
        assert bool(said) == all(opinion.totals(chosen) for chosen in possible)


def few(part: int, parts: int, count: int = 600) -> Iterator[World]:
    return (generated(seed, 12) for seed in range(part, count, parts))


@pytest.mark.parametrize("part", range(4))
def test_few_features_have_the_verdict_of_trying_every_combination(tmp_path: Path, part: int) -> None:
    for number, world in enumerate(few(part, 4)):
        decision = decide(world.request(), world.facts(), catalog(world.write(tmp_path / f"world-{number}")))
        check(world, decision, Opinion(world).best())


def test_the_generated_requests_are_a_fair_mixture() -> None:
    worlds = list(few(0, 1))
    legal = [world for world in worlds if Opinion(world).best() is not None]
    assert 0.25 < len(legal) / len(worlds) < 0.75
    choosing = [world for world in worlds if any(len(group) > 1 for group in Opinion(world).groups())]
    second = [
        world
        for world in choosing
        if (best := Opinion(world).best())
        and best != tuple(group[0].name for group in Opinion(world).groups())
    ]
    counted = [
        world
        for world in worlds
        if any(toy.has("occupies-ranks") for group in Opinion(world).groups() for toy in group)
    ]
    assert len(choosing) > 200 and len(second) > 20 and len(counted) > 100
    assert len([world for world in legal if world.profile == "official" and world.asked]) > 3


@pytest.mark.parametrize("part", range(3))
def test_fifty_features_have_the_verdict_of_python_sat(tmp_path: Path, part: int) -> None:
    verdicts = []
    for seed in range(part, 60, 3):
        world = generated(seed, 50)
        decision = decide(world.request(), world.facts(), catalog(world.write(tmp_path / str(seed))))
        check(world, decision, Opinion(world).best_by_sat())
        verdicts.append(decision.legal)
    assert True in verdicts and False in verdicts


def test_both_second_opinions_are_the_same() -> None:
    assert all(Opinion(world).best() == Opinion(world).best_by_sat() for world in few(0, 3))


def toy(name: str, *effects: tuple[str, int, str], **fields: Any) -> Toy:
    plain = dict(plugin=1, slot="", tier="exact", experimental=False, wants=2, group="", order=1)
    return Toy(**{**plain, "name": name, "effects": effects, "families": ("*",), "state": "", **fields})


def decided(toys: Sequence[Toy], tmp_path: Path, profile: str = "none", ranks: int = 1) -> Decision:
    """All of them asked for, and the decision as the second opinion has it too."""
    asked = tuple(dict.fromkeys(toy.group or toy.name for toy in toys))
    world = World(tuple(toys), (), asked, profile, ranks)
    decision = decide(world.request(), world.facts(), catalog(world.write(tmp_path)))
    check(world, decision, Opinion(world).best())
    return decision


def test_where_a_warning_refuses_a_candidate_without_one_is_chosen(tmp_path: Path) -> None:
    toys = [
        toy("graph", ("captures-graph", 0, "")),
        toy("first", ("splits-guidance", 0, ""), group="quantization", order=1),
        toy("second", group="quantization", order=2),
    ]
    for profile, chosen in (("none", "first"), ("official", "second")):
        plan = decided(toys, tmp_path / profile, profile).plan
        assert plan is not None and plan.feature(chosen) is not None


def test_numbers_are_no_reason_where_another_candidate_has_none(tmp_path: Path) -> None:
    toys = [
        toy("broken", wants=4),
        toy("first", ("occupies-ranks", 2, ""), group="quantization", order=1),
        toy("second", group="quantization", order=2),
    ]
    assert [violation.code for violation in decided(toys, tmp_path).violations] == ["TOY-BROKEN"]


def test_many_choices_whose_numbers_never_fit_are_refused_at_once(tmp_path: Path) -> None:
    ranks = [toy(f"ranks{n}", ("occupies-ranks", 3, ""), group=SELECTORS[n % 2], order=n) for n in range(8)]
    others = [toy(f"other{n}", group=SELECTORS[2 + n % 2], order=n) for n in range(8)]
    assert [violation.code for violation in decided([*ranks, *others], tmp_path).violations] == ["WF-C034"]


def test_what_a_refusal_recommends_is_so_by_the_second_opinion(tmp_path: Path) -> None:
    seen = 0
    for seed in range(2000, 2250):
        world = generated(seed, 12)
        try:
            resolve(world.request(), world.facts(), catalog(world.write(tmp_path / str(seed))))
        except Refused as refused:
            seen += 1
            _check_advice(world, refused.refusal)
    assert seen > 100


def _check_advice(world: World, refusal: Refusal) -> None:
    assert refusal.nearest is not None and not refusal.nearest.set
    assert _legal_without(world, refusal.nearest.unset)
    for fix in refusal.fixes:
        assert not fix.change.set
        assert _legal_without(world, fix.change.unset) == fix.single
    for fewer in range(len(refusal.nearest.unset)):
        assert not any(_legal_without(world, out) for out in combinations(world.request(), fewer))


def _legal_without(world: World, out: Sequence[str]) -> bool:
    left = attrs.evolve(world, asked=tuple(key for key in world.asked if key not in out))
    left = attrs.evolve(left, profile="none") if "profile" in out else left
    return Opinion(left).best() is not None


def test_the_answer_does_not_depend_on_the_order_of_keys_or_of_plugins(tmp_path: Path) -> None:
    for seed in range(1000, 1060):
        world = generated(seed, 12 if seed % 6 else 50)
        folders = world.write(tmp_path / str(seed))
        items = list(world.request().items())
        shuffle = random.Random(seed)
        answers = set()
        for _ in range(3):
            shuffle.shuffle(items)
            shuffle.shuffle(folders)
            answers.add(_answer(dict(items), world, catalog(folders)))
        assert len(answers) == 1


def _answer(request: dict[str, Any], world: World, known: Catalog) -> str:
    try:
        plan = resolve(request, world.facts(), known)
    except Refused as refused:
        return json.dumps(refused.refusal.to_json())
    return plan.hash + json.dumps(plan.to_json())
