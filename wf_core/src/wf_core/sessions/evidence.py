"""From counters to claims: what a feature may be called after a run. Computed by the host, never set by a plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wf_core.kinds.counters import Fallback
    from wf_core.manifests.declarations import EvidenceDecl
    from wf_core.resolving.plan import PlannedFeature

EFFECTIVE, PARTIAL, INERT, PENDING = "effective", "partial", "inert", "pending"


def state_of(
    feature: PlannedFeature, counts: Mapping[str, int], fallbacks: Iterable[Fallback], *, ran: bool
) -> str:
    """``pending`` before a run has computed anything; ``inert`` when the evidence is missing, or when there is none
    that could prove anything; ``partial`` when some calls fell back; else ``effective``.
    """
    if not ran:
        return PENDING
    required = [item for item in feature.evidence if item.at_least is not None]
    proven = any(item.proves for item in required)
    if not proven or not all(_holds(item, counts) for item in required):
        return INERT
    fell_back = any(item.feature == feature.name for item in fallbacks)
    if fell_back or not all(_holds(item, counts) for item in feature.evidence):
        return PARTIAL
    return EFFECTIVE


def _holds(item: EvidenceDecl, counts: Mapping[str, int]) -> bool:
    found = counts.get(item.counter, 0)
    if item.equals_counter:
        return found == counts.get(item.equals_counter, 0)
    if item.equals is not None:
        return found == item.equals
    return found >= (item.at_least or 0)
