"""Goals: what they add to a request, in which order, and what they leave alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wf_core.errors import BadInput
from wf_core.plugins.catalog import Catalog
from wf_core.resolving.plan import Plan
from wf_core.resolving.resolve import resolve
from wf_core.resolving.saved import plan_from_json

from .conftest import Site
from .test_resolve import MODEL, catalog, codes, feature, refusal

LOSSY = 'tier = "approximate"\ntolerance = "none: only for tests"'
SIZE = '[[feature.option]]\nname = "size"\ntype = "int"\n'
LATER = 'state = "unavailable: not implemented"\n'


def serving(
    name: str, goals: str, extra: str = "", *, tier: str = 'tier = "exact"', kind: str = "fusion"
) -> str:
    """A feature that a goal may add, by its example."""
    return feature(name, f"example = {{ {name} = true }}\ngoals = {goals}\n{extra}", kind, tier)


def plan(found: Catalog, **request: Any) -> Plan:
    return resolve(request, MODEL, found)


def test_what_serves_the_goal_is_added_and_said(site: Site) -> None:
    site.plugin("fuse", serving("fuse", '["exact", "fast"]'))
    site.plugin("other", feature("other"))
    found = plan(catalog(site), goal="exact")
    assert [planned.name for planned in found.features] == ["fuse"]
    assert found.chosen == ("fuse",)
    assert found.to_json()["chosen"] == ["fuse"]
    assert "chosen by the goal: fuse" in found.explain()
    assert found.request_dict() == {"goal": "exact", "fuse": True}
    assert plan(catalog(site)).features == ()
    assert plan(catalog(site), goal="memory").chosen == ()
    assert plan(catalog(site), goal="none").features == ()


def test_the_order_is_that_of_composition_then_declared_then_by_name(site: Site) -> None:
    slot = 'slot = "one"\n'
    site.plugin("late", serving("late", '[{ goal = "fast", order = 1 }]', 'stage = "vae"\n' + slot))
    site.plugin("early", serving("early", '[{ goal = "fast", order = 50 }]', 'stage = "cache"\n' + slot))
    assert plan(catalog(site), goal="fast").chosen == ("early",), "the stage counts before the order"
    site.plugin("first", serving("first", '[{ goal = "fast", order = 2 }]', 'stage = "cache"\n' + slot))
    assert plan(catalog(site), goal="fast").chosen == ("first",)
    site.plugin("equal", serving("equal", '[{ goal = "fast", order = 2 }]', 'stage = "cache"\n' + slot))
    found = plan(catalog(site), goal="fast")
    assert found.chosen == ("equal",)
    assert plan(catalog(site), goal="fast") == found


def test_an_explicit_key_wins_on_or_off(site: Site) -> None:
    option = '[[feature.option]]\nname = "size"\ntype = "int"\ndefault = 1\n'
    site.plugin("fuse", serving("fuse", '[{ goal = "exact", set = { fuse = { size = 8 } } }]', option))
    found = catalog(site)
    assert plan(found, goal="exact").features[0].option("size") == 8
    own = plan(found, goal="exact", fuse=True)
    assert own.features[0].option("size") == 1
    assert own.chosen == ()
    dotted = plan(found, **{"goal": "exact", "fuse.size": 3})
    assert (dotted.features[0].option("size"), dotted.chosen) == (3, ())
    off = plan(found, goal="exact", fuse=False)
    assert (off.features, off.chosen) == ((), ())
    assert off.request_dict() == {"goal": "exact", "fuse": False}, "what was turned off stays in the request"


def test_an_alias_of_a_key_speaks_of_it_too(site: Site) -> None:
    text = serving("fuse", '["exact"]').replace('form = "feature"', 'form = "feature"\naliases = ["melt"]')
    site.plugin("fuse", text)
    assert plan(catalog(site), goal="exact", melt=False).chosen == ()


def test_losses_are_taken_by_fast_alone(site: Site) -> None:
    site.plugin("skip", serving("skip", '["exact", "fast", "memory"]', tier=LOSSY))
    site.plugin("trial", serving("trial", '["exact", "fast", "memory"]', "experimental = true\n"))
    found = catalog(site)
    assert plan(found, goal="exact").chosen == ()
    assert plan(found, goal="memory").chosen == ()
    assert plan(found, goal="fast").chosen == ("skip", "trial")


def test_what_is_only_declared_or_blocked_is_never_added(site: Site) -> None:
    site.plugin("later", serving("later", '["fast"]', LATER))
    site.plugin("fuse", serving("fuse", '["fast"]'))
    assert plan(catalog(site), goal="fast").chosen == ("fuse",)
    assert plan(catalog(site, WF_BLOCK="fuse"), goal="fast").chosen == ()


def test_what_a_condition_or_a_rule_refuses_is_left_out(site: Site) -> None:
    condition = '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "needs CUDA"\n'
    site.plugin("kernel", serving("kernel", '["fast"]', condition))
    site.plugin("skip", serving("skip", '["fast"]', 'effects = ["host-state@stack"]\nstage = "cache"\n'))
    site.plugin("graph", feature("graph", 'effects = ["captures-graph@denoiser"]\nstage = "graph"'))
    found = catalog(site)
    assert plan(found, goal="fast").chosen == ("skip",)
    beside = plan(found, goal="fast", graph=True)
    assert [planned.name for planned in beside.features] == ["graph"]
    assert beside.chosen == ()


def test_what_would_bring_a_warning_is_left_out(site: Site) -> None:
    site.plugin("static", serving("static", '["fast"]', 'effects = ["rank-uniform-decision"]\n'))
    site.plugin("spread", feature("spread", 'effects = ["occupies-ranks(2)"]\n'))
    found = catalog(site)
    assert plan(found, goal="fast").chosen == ("static",)
    assert plan(found, goal="fast", spread=True).chosen == ()


def test_a_request_that_is_refused_is_refused_whatever_its_goal(site: Site) -> None:
    site.plugin("fuse", serving("fuse", '["fast"]'))
    assert codes(refusal({"goal": "fast", "nothing": 1}, MODEL, catalog(site))) == ["WF-R001"]


# --- what was not chosen ---------------------------------------------------------------------------------------------


def not_chosen(found: Plan) -> dict[str, tuple[str, ...]]:
    return {item.feature: item.reasons for item in found.not_chosen}


def test_the_plan_says_of_everything_that_serves_the_goal_why_it_was_not_chosen(site: Site) -> None:
    cuda = (
        '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\ncode = "TOY-9"\nreason = "needs CUDA."\n'
    )
    four = '[[feature.condition]]\nfact = "model.heads"\nge = 40\nreason = "needs 40 heads."\n'
    site.plugin("spread", feature("spread", 'effects = ["occupies-ranks(2)"]\n'))
    for name, extra, tier in [
        ("fuse", "", 'tier = "exact"'),
        ("kernel", cuda + four, 'tier = "exact"'),
        ("lossy", "", LOSSY),
        ("trial", "experimental = true\n", 'tier = "exact"'),
        ("later", LATER, 'tier = "exact"'),
        ("mine", "", 'tier = "exact"'),
        ("static", 'effects = ["rank-uniform-decision"]\n', 'tier = "exact"'),
    ]:
        site.plugin(name, serving(name, '["exact", "fast"]', extra, tier=tier))
    site.plugin("other", serving("other", '["fast"]'))
    found = plan(catalog(site), goal="exact", mine=False, spread=True)
    assert found.chosen == ("fuse",)
    reasons = not_chosen(found)
    assert reasons.pop("static")[0].startswith("WF-C031 ")
    assert reasons == {
        "kernel": ("TOY-9 needs CUDA.", "WF-F001 needs 40 heads."),
        "lossy": ("lossy has losses, which only goal=fast takes.",),
        "trial": ("trial is experimental, which only goal=fast takes.",),
        "later": ("it is unavailable: not implemented",),
        "mine": ("the request speaks of mine itself.",),
    }
    assert {*not_chosen(plan(catalog(site), goal="fast", spread=True))} == {"kernel", "later", "static"}
    assert plan(catalog(site), mine=True).not_chosen == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("", ", set = { one = { size = 2 } }"),
        (', set = { "one.size" = 2 }', ""),
        ("", ', set = { "one.size" = 2 }'),
    ],
)
def test_two_ways_to_one_place_and_the_same_feature_twice_are_told(
    first: str, second: str, site: Site
) -> None:
    goals = f'[{{ goal = "fast", order = 1{first} }}, {{ goal = "fast", order = 2{second} }}]'
    option = '[[feature.option]]\nname = "size"\ntype = "int"\ndefault = 1\n'
    site.plugin("one", serving("one", goals, 'slot = "place"\n' + option))
    site.plugin("two", serving("two", '[{ goal = "fast", order = 3 }]', 'slot = "place"\n'))
    found = plan(catalog(site), goal="fast")
    assert not_chosen(found)["one"] == ("the goal has set one already.",)
    [slot] = not_chosen(found)["two"]
    assert slot.startswith("WF-C001 Both would fill the same place (place)")


def test_what_was_not_chosen_is_in_the_text_and_in_the_json(site: Site) -> None:
    condition = '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "needs CUDA."\n'
    site.plugin(
        "kernel", serving("kernel", '[{ goal = "fast", set = { "kernel.size" = 2 } }]', condition + SIZE)
    )
    found = plan(catalog(site), goal="fast")
    assert (
        "  not chosen by the goal: kernel (kernel.size=2): WF-F001 needs CUDA."
        in found.explain().splitlines()
    )
    assert found.to_json()["not_chosen"] == [
        {
            "plugin": "kernel",
            "feature": "kernel",
            "request": {"kernel.size": 2},
            "reasons": ["WF-F001 needs CUDA."],
        }
    ]
    assert plan_from_json(json.loads(json.dumps(found.to_json()))) == found
    nothing = plan(catalog(site), goal="exact")
    assert nothing.not_chosen == () and "not chosen" not in nothing.explain()


@pytest.mark.parametrize(
    "value", [None, 3, "x", [3], [{}], [{"plugin": 1, "feature": "a", "request": {}, "reasons": []}]]
)
def test_what_is_no_list_of_them_is_no_plan(site: Site, value: Any) -> None:
    saved = plan(catalog(site), goal="fast").to_json() | {"not_chosen": value}
    with pytest.raises(BadInput, match=r"^not a complete plan"):
        plan_from_json(saved)


# --- budgets --------------------------------------------------------------------------------------------------------

LARGE = MODEL.with_({"model.parameters_bytes": 4 << 30})


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (5 << 30, 5 << 30),
        (str(5 << 30), 5 << 30),
        ("5GiB", 5 << 30),
        ("5 gib", 5 << 30),
        ("4.5GiB", 9 << 29),
        ("6000MiB", 6000 << 20),
        ("5GB", 5_000_000_000),
        ("1TiB", 1 << 40),
    ],
)
def test_the_units_of_a_budget(site: Site, given: Any, size: int) -> None:
    found = resolve({"goal": "memory", "budget": given}, LARGE, catalog(site))
    assert found.host_keys_dict()["budget"] == size


@pytest.mark.parametrize("given", ["0", 0, -1, "5G", "5 gigabytes", "GiB", True, "nan", 1.5])
def test_what_is_no_size_is_refused(site: Site, given: Any) -> None:
    found = refusal({"goal": "memory", "budget": given}, LARGE, catalog(site))
    assert codes(found) == ["WF-R003"]
    assert "expects a number of bytes" in found.violations[0].reason


def test_a_budget_without_a_goal_would_be_ignored(site: Site) -> None:
    [violation] = refusal({"budget": "5GiB"}, LARGE, catalog(site)).violations
    assert (violation.code, violation.involves) == ("WF-R005", ("budget", "goal"))


def test_weights_over_the_budget_are_refused_unless_something_moves_them_away(site: Site) -> None:
    found = refusal({"goal": "memory", "budget": "3GiB"}, LARGE, catalog(site))
    [violation] = found.violations
    assert (violation.code, violation.involves) == ("WF-G003", ("budget", "goal", "model"))
    assert "weights take 4.0 GiB and the budget is 3.0 GiB" in violation.reason
    assert str(found.nearest) == "leave out budget"
    site.plugin("away", serving("away", '["memory"]', 'effects = ["moves-parameters"]\n', kind="placement"))
    assert resolve({"goal": "memory", "budget": "3GiB"}, LARGE, catalog(site)).chosen == ("away",)
    assert codes(refusal({"goal": "memory", "budget": "3GiB", "away": False}, LARGE, catalog(site))) == [
        "WF-G003"
    ]


def test_weights_of_unknown_size_are_not_judged(site: Site) -> None:
    assert resolve({"goal": "memory", "budget": "3GiB"}, MODEL, catalog(site)).features == ()


# --- several features behind one word -------------------------------------------------------------------------------


def test_a_goal_that_stands_for_several_features_says_which_of_them_it_brought(site: Site) -> None:
    """sglang#30016: a profile expands to less than its name says, and no one prints it."""
    condition = '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "needs CUDA"\n'
    for name in ("one", "two"):
        site.plugin(name, serving(name, '["fast"]'))
    for name in ("three", "four"):
        site.plugin(name, serving(name, '["fast"]', condition))
    found = plan(catalog(site), goal="fast")
    assert found.chosen == ("one", "two"), "expanded, by name; what cannot work here is not among them"
    assert [planned.name for planned in found.features] == ["one", "two"]
    assert found.to_json()["chosen"] == list(found.chosen)
    assert "goal = fast" in found.explain()
    assert "chosen by the goal: one, two" in found.explain()
    off = plan(catalog(site), goal="fast", one=False)
    assert off.chosen == ("two",)
    assert off.request_dict()["one"] is False
    assert "one=false" in off.explain()
