"""Rules over the numbers of all features: product, sum and equality, of an effect that a third party brings."""

from __future__ import annotations

from wf_core.facts import Facts
from wf_core.plugins.catalog import Catalog
from wf_core.resolving.deciding import decide
from wf_core.resolving.resolve import resolve

from .conftest import Site
from .test_resolve import MODEL, catalog, codes, feature, refusal

SIZE = '[[feature.option]]\nname = "size"\ntype = "int"\ndefault = 1\n'
WORD = '[[effect]]\nname = "takes"\ndoc = "It takes so many of them."\nnumbers = 1\n'
RULE = """[[rule]]
code = "TAKE-1"
level = "forbid"
aggregate = "{aggregate}"
effect = "takes"
needs = {{ fact = "test.places", {operator} = {{ option = "total" }} }}
involves = ["places"]
reason = "{{total}} are taken, and there are {{value}}."
"""
PLACES = MODEL.with_({"test.places": 6})


def judged(found: Catalog, facts: Facts = PLACES, **sizes: int) -> list[str]:
    """The reasons against a request of features with these sizes; none if it is legal."""
    request = {name: {"size": size} for name, size in sizes.items()}
    decision = decide(request, facts, found)
    assert decision.legal == (not decision.violations)
    return [violation.reason for violation in decision.violations]


def features(site: Site, aggregate: str, operator: str = "eq") -> Catalog:
    """Three features that take ``size`` each, and a rule over all of them."""
    text = "\n".join(
        f'[[feature]]\nname = "{name}"\ntier = "exact"\nevidence = [{{ counter = "calls", at_least = 1 }}]\n'
        f'effects = ["takes(size)"]\n{SIZE}[[switch]]\nname = "{name}"\nfeature = "{name}"\nform = "feature"'
        for name in ("one", "two", "three")
    )
    head = 'schema = 1\nname = "takers"\napi = 1\nkind = "parallel-strategy"\n'
    site.plugin("takers", head + text + "\n" + WORD + RULE.format(aggregate=aggregate, operator=operator))
    return catalog(site)


def test_a_product_must_be_what_the_fact_is(site: Site) -> None:
    found = features(site, "product")
    assert judged(found, one=2, two=3) == []
    assert judged(found, one=6) == []
    assert judged(found, one=2, two=2) == ["4 are taken, and there are 6."]
    assert judged(found, one=2, two=3, three=2) == ["12 are taken, and there are 6."]


def test_a_sum_must_be_within_the_fact(site: Site) -> None:
    found = features(site, "sum", "ge")
    assert judged(found, one=2, two=4) == []
    assert judged(found, one=3, two=4) == ["7 are taken, and there are 6."]


def test_equal_numbers_are_compared_one_by_one(site: Site) -> None:
    found = features(site, "equal")
    assert judged(found, one=6, two=6) == []
    assert judged(found, one=6, two=3) == ["3 are taken, and there are 6."]
    assert judged(found, one=2, two=3) == [
        "2 are taken, and there are 6.",
        "3 are taken, and there are 6.",
    ]


def test_a_number_of_one_is_as_good_as_none(site: Site) -> None:
    found = features(site, "product")
    assert judged(found, one=1, two=1) == []
    assert judged(found, one=6, two=1) == []
    refused = refusal({"one": {"size": 2}, "two": {"size": 1}}, PLACES, found)
    assert "two" not in refused.violations[0].involves


def test_what_is_not_known_refuses_nothing(site: Site) -> None:
    assert judged(features(site, "product"), MODEL, one=2, two=2) == []


def test_the_refusal_names_all_who_take_part_and_what_would_fit(site: Site) -> None:
    found = refusal({"one": {"size": 2}, "two": {"size": 2}}, PLACES, features(site, "product"))
    [violation] = found.violations
    assert (violation.code, violation.involves) == ("TAKE-1", ("one", "two", "places"))
    assert [str(chain) for chain in violation.chains] == [
        'one={"size": 2} -> one -> takes(2)',
        'two={"size": 2} -> two -> takes(2)',
    ]
    assert "leave out one" not in [str(fix.change) for fix in found.fixes if fix.single], (
        "two alone are not six"
    )


def test_the_ranks_of_all_strategies_are_the_world(site: Site) -> None:
    for name in ("along", "across"):
        text = feature(name, 'effects = ["occupies-ranks(size)"]\n' + SIZE, "parallel-strategy")
        site.plugin(name, text.replace('form = "feature"', 'form = "value"\noption = "size"'))
    found = catalog(site)
    request = {"along": 2, "across": 2}
    assert resolve(request, MODEL.with_({"process.world": 4}), found).features
    refused = refusal(request, MODEL.with_({"process.world": 8}), found)
    assert codes(refused) == ["WF-C034"]
    assert "multiply to 4, and the world has 8" in refused.violations[0].reason
    assert "world" in refused.violations[0].involves
    fixes = {str(fix.change) for fix in refused.fixes if fix.single}
    assert fixes >= {"set along=4", "set across=4"}
