"""Every installed feature has an example that turns it on, read by its own manifest and the core's selectors."""

from __future__ import annotations

from typing import Any

import pytest

from wf_core import Host
from wf_core.manifests.declarations import GoalDecl
from wf_core.names import switch_key
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.plugins.discovery import discover
from wf_core.resolving.request import parse_request

CATALOG = Catalog.of(discover(environ={}))
OFFERS = CATALOG.features()
GOALS = [(offer, goal) for offer in OFFERS for goal in offer.feature.goals]


def demanded(request: Any, offer: Offer, catalog: Catalog) -> tuple[list[str], list[str]]:
    """The features that a request asks for, by plugin, and what is wrong with it, for a family of the feature."""
    family = next((name for name in offer.feature.families if name != "*"), "wan")
    parsed = parse_request(request, catalog, family)
    wanted = [f"{o.plugin}: {o.feature.name}" for demand in parsed.demands for o in demand.candidates]
    return wanted, [str(problem) for problem in parsed.problems]


def test_there_are_features(host: Host) -> None:
    assert len(OFFERS) == len(host.catalog.features()) > 60


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: offer.feature.name)
def test_the_example_turns_its_feature_on(offer: Offer) -> None:
    example = offer.feature.example
    assert example, "declare an example: the smallest request that turns the feature on"
    own = {name for switch in offer.switches for name in (switch.name, *switch.aliases)}
    keys = {switch_key(key).partition(".")[0] for key in example}
    assert keys <= own | set(CATALOG.selectors), "keys are switches of the feature, or selectors"
    assert demanded(example, offer, CATALOG) == ([f"{offer.plugin}: {offer.feature.name}"], [])


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: offer.feature.name)
def test_the_example_needs_no_other_plugin(offer: Offer) -> None:
    alone = Catalog((offer.record,))
    assert demanded(offer.feature.example, offer, alone) == ([f"{offer.plugin}: {offer.feature.name}"], [])


@pytest.mark.parametrize(
    ("offer", "goal"), GOALS, ids=[f"{offer.feature.name}-{goal.goal}" for offer, goal in GOALS]
)
def test_what_a_goal_adds_may_choose_its_feature(offer: Offer, goal: GoalDecl) -> None:
    wanted, problems = demanded(goal.set or offer.feature.example, offer, CATALOG)
    assert f"{offer.plugin}: {offer.feature.name}" in wanted
    assert problems == []
