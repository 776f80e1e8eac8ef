"""The rules over a plan, judged once more when a session opens: what was a warning, or unknown, is not let through."""

from __future__ import annotations

from wf_core.facts import Facts
from wf_core.plugins.catalog import Catalog
from wf_core.resolving.plan import Plan
from wf_core.resolving.rejudging import rejudge_rules
from wf_core.resolving.resolve import resolve

from .conftest import Site
from .test_aggregates import PLACES, features
from .test_resolve import MODEL, catalog, feature


def found(plan: Plan, facts: Facts, known: Catalog) -> list[tuple[str, str]]:
    return [(violation.code, violation.level) for violation in rejudge_rules(plan, facts, known)]


def test_what_is_untested_forbids_where_the_host_is_strict_by_now(site: Site) -> None:
    site.plugin("ranks", feature("ranks", 'effects = ["occupies-ranks(2)"]', "parallel-strategy"))
    site.plugin("uniform", feature("uniform", 'effects = ["rank-uniform-decision"]'))
    facts = MODEL.with_({"process.world": 2})
    plan = resolve({"ranks": True, "uniform": True}, facts, catalog(site))
    assert [warning.code for warning in plan.warnings] == ["WF-C031"]
    assert found(plan, facts, catalog(site)) == [("WF-C031", "untested")]
    assert found(plan, facts, catalog(site, WF_STRICT="1")) == [("WF-C031", "forbid")]


def test_an_aggregate_that_stays_unknown_is_not_taken_as_met(site: Site) -> None:
    known = features(site, "product")
    plan = resolve({"one": {"size": 2}, "two": {"size": 3}}, MODEL, known)
    assert found(plan, PLACES, known) == []
    assert found(plan, PLACES.with_({"test.places": 5}), known) == [("TAKE-1", "forbid")]
    [violation] = rejudge_rules(plan, MODEL, known)
    assert (violation.code, violation.level) == ("WF-F002", "forbid")
    assert "test.places stayed unknown" in violation.reason
    assert violation.involves == ("one", "two", "places")


def test_an_aggregate_that_nobody_has_a_number_for_needs_no_fact(site: Site) -> None:
    known = features(site, "product")
    assert found(resolve({"one": {"size": 1}}, MODEL, known), MODEL, known) == []
