"""What a feature may be called after a run follows from counters alone."""

from __future__ import annotations

import pytest

from wf_core.kinds.counters import Fallback
from wf_core.manifests.declarations import EvidenceDecl
from wf_core.resolving.plan import PlannedFeature
from wf_core.sessions.evidence import state_of

SKIPPED = EvidenceDecl("skipped", at_least=2)
ALL = EvidenceDecl("done", equals_counter="tried")


@pytest.mark.parametrize(
    ("evidence", "counts", "state"),
    [
        ((SKIPPED,), {"skipped": 2}, "effective"),
        ((SKIPPED,), {"skipped": 1}, "inert"),
        ((SKIPPED, ALL), {"skipped": 2, "done": 3, "tried": 3}, "effective"),
        ((SKIPPED, ALL), {"skipped": 2, "done": 3, "tried": 4}, "partial"),
        ((), {}, "inert"),
        ((ALL,), {}, "inert"),
        ((EvidenceDecl("errors", equals=0),), {}, "inert"),
        ((EvidenceDecl("done", at_least=0),), {"done": 5}, "inert"),
    ],
)
def test_nothing_is_effective_without_a_counter_that_had_to_move(
    evidence: tuple[EvidenceDecl, ...], counts: dict[str, int], state: str
) -> None:
    planned = PlannedFeature("p", "f", "fusion", "exact", evidence=evidence)
    assert state_of(planned, counts, (), ran=True) == state
    assert state_of(planned, counts, (), ran=False) == "pending"


def test_a_fallback_makes_it_partial() -> None:
    planned = PlannedFeature("p", "f", "fusion", "exact", evidence=(SKIPPED,))
    fell_back = [Fallback(feature="f", seam="stack", reason="r", count=1)]
    assert state_of(planned, {"skipped": 9}, fell_back, ran=True) == "partial"
