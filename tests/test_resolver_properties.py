"""Requests on generated catalogs, decided a second time without any of the resolver's code."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import attrs
import pytest

from support.second_opinion import MOST_COMBINATIONS, Opinion
from support.worlds import SELECTORS, Toy, World, generated
from wf_core import Refused
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.resolving.deciding import Decision, decide
from wf_core.resolving.plan import Refusal
from wf_core.resolving.resolve import resolve


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
