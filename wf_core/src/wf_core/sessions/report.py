"""The report of one run: requested, effective, fallbacks; from counters."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wf_core.facts.run import with_derived
from wf_core.kinds.caching.runtime import FeatureCache
from wf_core.resolving.judging import INERT
from wf_core.sessions.evidence import EFFECTIVE, PARTIAL, PENDING, state_of
from wf_core.values import thaw

if TYPE_CHECKING:
    from wf_core.kinds.techniques import Technique
    from wf_core.resolving.plan import Plan, PlannedFeature, Violation
    from wf_core.sessions.run import Run

SCHEMA = 1


class Report(Mapping[str, Any]):
    """A mapping of plain JSON values. It stays valid after the session is closed."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values: dict[str, Any] = thaw(dict(values))

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Report({self.to_json(indent=2)})"

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self._values, indent=indent, allow_nan=False)


def pending_report(plan: Plan, versions: Mapping[str, str]) -> Report:
    """The report of a session that has not run: everything requested is pending."""
    return Report(
        {
            "schema": SCHEMA,
            "plan": plan.hash,
            "requested": plan.request_dict(),
            "effective": {feature.name: _claim(feature, PENDING, {}) for feature in plan.features},
            "fallbacks": [],
            "identity": "no calls",
            "steps": {},
            "timing": {},
            "memory": {},
            "versions": dict(versions),
            "warnings": [warning.to_json() for warning in plan.warnings],
            "run": None,
            "unattributed": [],
        }
    )


def run_report(
    plan: Plan,
    run: Run,
    begun: Mapping[str, Technique],
    evidence: Mapping[str, Mapping[str, Any]],
    *,
    versions: Mapping[str, str],
    first_run: bool,
) -> Report:
    """The report of a run that has ended, in whatever way.

    ``begun`` are the techniques that took part, ``evidence`` what each shows beside its counters; a feature that did
    not begin is pending. That a feature would do nothing is no warning any more where it did something, or where the
    run was another than the plan was asked about: what is so in this one, the features say by their fallbacks.
    """
    effective = {
        feature.name: _effective(feature, run, evidence.get(feature.name)) for feature in plan.features
    }
    worked = {name for name, claim in effective.items() if claim["state"] in (EFFECTIVE, PARTIAL)}
    facts = with_derived(run.view.facts)
    as_planned = all(
        value == facts.get(name) for name, value, _ in plan.facts_used if name.startswith("run.")
    )
    warnings = [
        warning
        for warning in plan.warnings
        if warning.level != INERT or (as_planned and _warned_of(warning, effective) not in worked)
    ]
    return Report(
        {
            **pending_report(plan, versions),
            "effective": effective,
            "warnings": [warning.to_json() for warning in warnings],
            "fallbacks": [
                {"feature": item.feature, "seam": item.seam, "reason": item.reason, "count": item.count}
                for item in run.counters.fallbacks()
            ],
            "identity": run.identity.summary(),
            "steps": _steps(run, begun),
            "timing": {"seconds": round(run.seconds, 6), "first_run": first_run},
            "run": {"id": run.id, "state": run.state, "error": run.error, "facts": _run_facts(run)},
        }
    )


def _warned_of(warning: Violation, features: Container[str]) -> str:
    """The feature that a warning is about: its own names come before those of others that it involves."""
    return next((name for name in warning.involves if name in features), "")


def _claim(feature: PlannedFeature, state: str, evidence: Mapping[str, Any]) -> dict[str, Any]:
    claim: dict[str, Any] = {
        "state": state,
        "kind": feature.kind,
        "tier": feature.tier,
        "plugin": feature.plugin,
        "options": thaw(feature.options_dict()),
        "evidence": dict(evidence),
    }
    if feature.experimental:
        claim["experimental"] = True
    return claim


def _effective(feature: PlannedFeature, run: Run, evidence: Mapping[str, Any] | None) -> dict[str, Any]:
    if evidence is None:
        return _claim(feature, PENDING, {})
    counts = run.counters.of(feature.name)
    state = state_of(feature, counts, run.counters.fallbacks(), ran=bool(run.calls or counts))
    return _claim(feature, state, {**counts, **evidence})


def _steps(run: Run, techniques: Mapping[str, Technique]) -> dict[str, Any]:
    called = sum(run.calls.values())
    steps: dict[str, Any] = {
        "total": run.view.num_inference_steps,
        "seen": len(run.steps_seen),
        "calls": {f"{expert}/{branch}": n for (expert, branch), n in sorted(run.calls.items())},
    }
    caches = {name: tech for name, tech in techniques.items() if isinstance(tech, FeatureCache)}
    if caches:
        steps["caches"] = {name: _cache_steps(cache) for name, cache in caches.items()}
    saved = sum(1.0 - event.share for cache in caches.values() for event in cache.events)
    steps["forwards"] = {"called": called, "computed": _plain(called - saved)}
    return steps


def _plain(number: float) -> float | int:
    """Whole where it is: a cache that skips some of the blocks leaves a part of a forward."""
    return round(number) if abs(number - round(number)) < 1e-6 else round(number, 4)


def _cache_steps(cache: FeatureCache) -> dict[str, Any]:
    branches: dict[str, dict[str, Any]] = {}
    for event in cache.events:
        row = branches.setdefault(
            f"{event.expert}/{event.branch}", {"computed": [], "skipped": [], "reasons": {}}
        )
        row["computed" if event.computed else "skipped"].append(event.step)
        row["reasons"][str(event.step)] = event.reason
        if event.share not in (0.0, 1.0):
            row.setdefault("shares", {})[str(event.step)] = round(event.share, 4)
    computed = sum(event.computed for event in cache.events)
    return {"computed": computed, "skipped": len(cache.events) - computed, "branches": branches}


def _run_facts(run: Run) -> dict[str, Any]:
    return {name: fact["value"] for name, fact in run.view.facts.to_json().items() if name.startswith("run.")}
