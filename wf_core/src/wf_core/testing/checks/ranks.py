"""Checks on two processes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from wf_core.testing.cases import FeatureCase, benches, trial_of
from wf_core.testing.checks.registry import Nonconformity, NotApplicable, check
from wf_core.testing.child import run_children, task

RANKS = 2
UNIFORM, CHECKED = "rank-uniform-decision", "ranks-checked"


@check("feature")
def ranks_decide_alike(case: FeatureCase) -> None:
    """A feature that declares rank-uniform-decision computes and skips alike on two processes with other values."""
    declared = {rule.effect.name for rule in case.feature.effects}
    if CHECKED in declared and UNIFORM not in declared:
        raise Nonconformity(f"it declares {CHECKED}, and not {UNIFORM}, which is what was checked.")
    if UNIFORM not in declared:
        raise NotApplicable(f"it does not declare {UNIFORM}")
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        tasks = [
            task(
                (case.record.module, case.family.module),
                trial_of(case.family),
                [case.request],
                case.changes,
                rank=rank,
                world=RANKS,
                meeting=meeting,
                seed=100 + rank,
            )
            for rank in range(RANKS)
        ]
        answers = run_children(tasks, benches(case))
    for answer in answers:
        if "error" in answer:
            raise Nonconformity(f"on two processes it fails: {answer['error']}.")
    one, other = (answer["calls"] for answer in answers)
    if one != other:
        at = next(
            (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), -1
        )
        raise Nonconformity(
            f"two ranks with different values decide differently, first at call {at + 1}: the decision looks at "
            "values. Decide from the schedule, or declare rank-local-decision."
        )
    if all(went_on for _, went_on in one):
        raise Nonconformity(
            "on two processes nothing was skipped, so that nothing was decided: correct the trial."
        )
