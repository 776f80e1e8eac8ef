"""The rule in plain numbers: which steps are computed, given the ratio of each step's residual to the one before.

Source: arXiv 2506.09045, section 3, and the authors' script for Wan 2.1 for what the paper leaves open: the order of
updates, the strict comparison, and the mapping to another number of steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from wf_core.api import (
    Reason,
)

START = "first-steps"
THRESHOLD = "threshold"
FORCED = "forced"
LAST = "last-steps"
BELOW = "below-threshold"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One step: whether it is computed, why, and the summed error that was compared (None where none was)."""

    compute: bool
    reason: str
    error: float | None = None


def decide(
    ratios: Sequence[float],
    start: int,
    threshold: float,
    max_skip: int,
    forced: Collection[int] = (),
    last: int = 0,
) -> tuple[Verdict, ...]:
    """The verdict of every step of one branch of one expert.

    ``ratios[i]`` is ``mean over tokens of |r_i| / |r_(i-1)|`` for the residual ``r`` of step ``i``. From step ``start``
    on, ``P = P * ratios[i]``, ``E = E + |1 - P|`` and the length ``n`` of the run of skips are brought up to date
    first; the step is skipped while ``E < threshold`` and ``n <= max_skip``. A computed step starts anew from
    ``P = 1``, ``E = 0``, ``n = 0``, and so do the ``last`` steps and those in ``forced``, which are computed whatever
    the sums are. All sums are float64. An error that is not a number is not below any threshold.
    """
    product, error, count = 1.0, 0.0, 0
    verdicts = []
    for index, ratio in enumerate(ratios):
        if index < start:
            verdict = Verdict(True, START)
        elif index in forced or index >= len(ratios) - last:
            verdict = Verdict(True, FORCED if index in forced else LAST)
        else:
            product *= ratio
            error += abs(1.0 - product)
            count += 1
            verdict = _compared(error, count, threshold, max_skip)
        if verdict.compute:
            product, error, count = 1.0, 0.0, 0
        verdicts.append(verdict)
    return tuple(verdicts)


def _compared(error: float, count: int, threshold: float, max_skip: int) -> Verdict:
    if not error < threshold:
        return Verdict(True, THRESHOLD, error)
    if count > max_skip:
        return Verdict(True, Reason.MAX_SKIP, error)
    return Verdict(False, BELOW, error)


def first_free(steps: int, retention_ratio: float) -> int:
    """The first step of an expert that the rule decides about: ``max(1, int(steps * retention_ratio))``.

    It counts the expert's own steps. The authors' script counts transformer calls of both branches together, which
    starts the branches one step apart where their number is odd; here both start alike.
    """
    return max(1, int(steps * retention_ratio))


def nearest_indices(measured: int, wanted: int) -> tuple[int, ...]:
    """Which of ``measured`` ratios each of ``wanted`` steps takes.

    Step ``j`` takes ``j * (measured - 1) / (wanted - 1)``, rounded half to even; a single step takes the last one. The
    values are not rescaled.
    """
    if wanted == 1:
        return (measured - 1,)
    return tuple(round(j * (measured - 1) / (wanted - 1)) for j in range(wanted))


def interpolated(ratios: Sequence[float], wanted: int) -> tuple[float, ...]:
    """The ratios of a run of ``wanted`` steps, from those of another number of steps."""
    return tuple(ratios[index] for index in nearest_indices(len(ratios), wanted))


def split(ratios: Sequence[float], high_noise_steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The two experts' own ratios.

    The first ratio of the second expert was taken across the change of experts, which is no decay; it becomes 1.0.
    """
    return tuple(ratios[:high_noise_steps]), (1.0, *ratios[high_noise_steps + 1 :])
