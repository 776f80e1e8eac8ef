"""Composition order: by stage, then by declared before and after, then by name. Install order never matters."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from wf_core.manifests.stages import position
from wf_core.resolving.plan import PlannedFeature, Violation


def ordered(
    features: Iterable[PlannedFeature],
) -> tuple[tuple[PlannedFeature, ...], tuple[Violation, ...]]:
    """The features outermost first; a cycle of before and after is a violation naming those in it.

    ``before`` and ``after`` name features; names that are not in the plan do not matter.
    """
    by_name = {feature.name: feature for feature in features}
    waits_for: dict[str, set[str]] = {name: set() for name in by_name}
    for feature in by_name.values():
        waits_for[feature.name] |= {name for name in feature.after if name in by_name}
        for name in feature.before:
            if name in by_name:
                waits_for[name].add(feature.name)
    ready = [(position(by_name[name].stage), name) for name, earlier in waits_for.items() if not earlier]
    heapq.heapify(ready)
    result: list[PlannedFeature] = []
    while ready:
        _, name = heapq.heappop(ready)
        result.append(by_name[name])
        for other, earlier in waits_for.items():
            if name in earlier:
                earlier.remove(name)
                if not earlier:
                    heapq.heappush(ready, (position(by_name[other].stage), other))
    stuck = sorted(set(by_name) - {feature.name for feature in result})
    if not stuck:
        return tuple(result), ()
    reason = f"the declared order of {', '.join(stuck)} has a cycle, so that no order is right."
    return tuple(by_name.values()), (Violation("WF-O001", "forbid", reason, tuple(stuck)),)
