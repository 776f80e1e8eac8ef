"""Resolving: a request and facts become a plan, or a refusal with everything that stands against it.

Pure: nothing is imported, written or loaded. What a plan is judged by later is in `wf_core.resolving.rejudging`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wf_core.errors import Refused
from wf_core.facts import Facts
from wf_core.facts.run import run_facts
from wf_core.plugins.catalog import Catalog
from wf_core.resolving.advice import advise
from wf_core.resolving.deciding import Decision, decide
from wf_core.resolving.goals import with_goal
from wf_core.resolving.plan import Plan, Refusal


def resolve(
    request: Mapping[str, Any], facts: Facts, catalog: Catalog, *, run: Mapping[str, Any] | None = None
) -> Plan:
    """The plan of a request. Raises `Refused` with every violation, never only the first.

    ``run`` is what is known of the call already: ``height``, ``num_frames``, ``num_inference_steps`` and so on.
    """
    facts = facts.merged(run_facts(run))
    decision = decide_with_goal(request, facts, catalog)
    if decision.plan is None:
        raise Refused(refusal(request, decision, facts, catalog))
    return decision.plan


def decide_with_goal(request: Mapping[str, Any], facts: Facts, catalog: Catalog) -> Decision:
    """The decision about a request and about what its goal adds."""
    return with_goal(request, decide(request, facts, catalog), facts, catalog)


def refusal(request: Mapping[str, Any], decision: Decision, facts: Facts, catalog: Catalog) -> Refusal:
    """Everything that stands against a request, and what could be changed."""
    family = facts.get("model.family") or ""
    advice = advise(
        request,
        decision.violations,
        lambda changed: decide_with_goal(changed, facts, catalog),
        lambda key: catalog.canonical(key, family),
    )
    return Refusal(decision.parsed.request, decision.violations, advice.fixes, advice.nearest)
