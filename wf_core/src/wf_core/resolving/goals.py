"""Goals: a request that says what it is for gets features added to it, one after another, while it stays legal.

The order is that of the composition (`wf_core.manifests.stages`), then what the features declare, then their names.
Never added: what cannot be activated, what the request speaks of already, what would bring a warning, and what has
losses, but under ``fast``. The plan says of each why it was not added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import attrs

from wf_core.facts import Facts
from wf_core.manifests.declarations import GoalDecl
from wf_core.manifests.effects import effect_name
from wf_core.manifests.stages import position
from wf_core.names import switch_key
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.resolving.deciding import Decision, decide
from wf_core.resolving.plan import NotChosen, Plan, Violation

LOSSY_GOAL = "fast"
OVER_BUDGET = "WF-G003"
FREES_WEIGHTS = ("moves-parameters", "moves-modules", "reloads-weights", "weights-as-buffers")
"""Effects after which the weights take less room on the device than their parameters say."""


def with_goal(request: Mapping[str, Any], decision: Decision, facts: Facts, catalog: Catalog) -> Decision:
    """The decision about the request with what its goal adds; the same decision where it has none or is refused."""
    goal = decision.parsed.host_keys.get("goal", "none")
    if decision.plan is None or goal == "none":
        return decision
    asked, request = decision, dict(request)
    family = facts.get("model.family") or ""
    chosen: list[str] = []
    left: list[NotChosen] = []
    for offer, declared in _offered(goal, catalog):
        added = dict(declared.set or offer.feature.example)
        spoken = {catalog.canonical(switch_key(str(key)).partition(".")[0], family) for key in request}
        taken = spoken & {catalog.canonical(key.partition(".")[0], family) for key in added}
        reasons = _unusable(offer) or _spoken_of(
            taken, {catalog.canonical(key.partition(".")[0], family) for key in chosen}
        )
        if not reasons:
            extended = decide({**request, **added}, facts, catalog)
            reasons = _reasons(extended, decision, goal)
        if reasons:
            left.append(NotChosen(offer.plugin, offer.feature.name, sorted(added.items()), tuple(reasons)))
        else:
            request, decision = {**request, **added}, extended
            chosen += sorted(added)
    assert decision.plan is not None
    over = _over_budget(decision.plan, facts)
    if over is not None:
        return attrs.evolve(asked, violations=(*asked.violations, over), plan=None)
    return attrs.evolve(
        decision, plan=attrs.evolve(decision.plan, chosen=tuple(chosen), not_chosen=tuple(left))
    )


def _offered(goal: str, catalog: Catalog) -> Iterator[tuple[Offer, GoalDecl]]:
    """The features that say that they serve the goal, in the documented order."""
    found = [
        (offer, declared)
        for offer in catalog.features()
        for declared in offer.feature.goals
        if declared.goal == goal
    ]
    return iter(
        sorted(found, key=lambda item: (position(item[0].feature.stage), item[1].order, item[0].feature.name))
    )


def _unusable(offer: Offer) -> list[str]:
    return [] if offer.state == "available" else [f"it is {offer.state}: {offer.reason}"]


def _spoken_of(taken: Set[str], chosen: Set[str]) -> list[str]:
    """The keys that are in the request already: the user's, or those of a feature that the goal has chosen before."""
    return [
        f"the goal has set {key} already." if key in chosen else f"the request speaks of {key} itself."
        for key in sorted(taken)
    ]


def _reasons(extended: Decision, before: Decision, goal: str) -> list[str]:
    """Why a goal may not choose what an addition makes of a request; nothing where it may."""
    if extended.plan is None or before.plan is None:
        return _told(v for v in extended.violations if v not in before.violations)
    had = {(feature.plugin, feature.name) for feature in before.plan.features}
    new = [feature for feature in extended.plan.features if (feature.plugin, feature.name) not in had]
    reasons = [] if new else ["it is in the plan already."]
    for feature in new:
        if feature.not_activatable:
            reasons.append(f"{feature.name} cannot be activated: {feature.not_activatable}")
        if goal != LOSSY_GOAL and feature.tier == "approximate":
            reasons.append(f"{feature.name} has losses, which only goal={LOSSY_GOAL} takes.")
        if goal != LOSSY_GOAL and feature.experimental:
            reasons.append(f"{feature.name} is experimental, which only goal={LOSSY_GOAL} takes.")
    return reasons + _told(w for w in extended.plan.warnings if w not in before.plan.warnings)


def _told(violations: Iterable[Violation]) -> list[str]:
    return list(dict.fromkeys(f"{violation.code} {violation.reason}" for violation in violations))


def _over_budget(plan: Plan, facts: Facts) -> Violation | None:
    """Whether the weights alone do not fit into the budget, and nothing in the plan frees the device of them."""
    budget, size = plan.host_keys.get("budget"), facts.get("model.parameters_bytes")
    effects = {effect_name(effect) for feature in plan.features for effect in feature.effects}
    if budget is None or size is None or size <= budget or effects & {*FREES_WEIGHTS}:
        return None
    reason = (
        f"the transformer's weights take {size / 2**30:.1f} GiB and the budget is {budget / 2**30:.1f} GiB, and no "
        "feature that can be activated here keeps them off the device."
    )
    return Violation(OVER_BUDGET, "forbid", reason, ("budget", "goal", "model"))
