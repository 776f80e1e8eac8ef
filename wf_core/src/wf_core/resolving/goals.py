"""Goals: a request that says what it is for gets features added to it, one after another, while it stays legal.

The order is that of the composition (`wf_core.manifests.stages`), then what the features declare, then their names.
Never added: what cannot be activated, what the request speaks of already, and what has losses, but under ``fast``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from wf_core.facts import Facts
from wf_core.manifests.declarations import GoalDecl
from wf_core.manifests.effects import effect_name
from wf_core.manifests.stages import position
from wf_core.names import switch_key
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.resolving.deciding import Decision, decide
from wf_core.resolving.plan import Plan, Violation

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
    for offer, declared in _offered(goal, catalog):
        added = dict(declared.set or offer.feature.example)
        spoken = {catalog.canonical(switch_key(str(key)).partition(".")[0], family) for key in request}
        if spoken & {catalog.canonical(key.partition(".")[0], family) for key in added}:
            continue
        extended = decide({**request, **added}, facts, catalog)
        if extended.plan is not None and _fits(extended.plan, decision.plan, goal):
            request, decision = {**request, **added}, extended
            chosen += sorted(added)
    assert decision.plan is not None
    over = _over_budget(decision.plan, facts)
    if over is not None:
        return attrs.evolve(asked, violations=(*asked.violations, over), plan=None)
    return attrs.evolve(decision, plan=attrs.evolve(decision.plan, chosen=tuple(chosen)))


def _offered(goal: str, catalog: Catalog) -> Iterator[tuple[Offer, GoalDecl]]:
    """The features that say that they serve the goal and can be activated, in the documented order."""
    found = [
        (offer, declared)
        for offer in catalog.features()
        for declared in offer.feature.goals
        if declared.goal == goal and offer.state == "available"
    ]
    return iter(
        sorted(found, key=lambda item: (position(item[0].feature.stage), item[1].order, item[0].feature.name))
    )


def _fits(extended: Plan, before: Plan, goal: str) -> bool:
    """Whether everything that came with the addition may be chosen by a goal, and something did come."""
    had = {(feature.plugin, feature.name) for feature in before.features}
    new = [feature for feature in extended.features if (feature.plugin, feature.name) not in had]
    warned = len(extended.warnings) > len(before.warnings)
    lossless = all(feature.tier != "approximate" and not feature.experimental for feature in new)
    ready = not any(feature.not_activatable for feature in new)
    return bool(new) and ready and not warned and (lossless or goal == LOSSY_GOAL)


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
