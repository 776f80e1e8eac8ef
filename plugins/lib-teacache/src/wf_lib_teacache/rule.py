"""The decision rule of TeaCache, in plain Python: numbers in, decisions out. No tensor, no model, no clock.

Source: "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", arXiv 2411.19108, section 3, as the
authors' code for Wan2.1 runs it (ali-vilab/TeaCache, TeaCache4Wan2.1/teacache_generate.py). All numbers are float64
and have no unit: a distance is the relative L1 change of the time signal between two consecutive solver steps, and
an estimate is the relative L1 change of the stack's residual that the polynomial expects from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from wf_core.api import (
    Reason,
    Window,
)

Distances = Sequence[float | None]
"""One per solver step; None where there is no previous step to compare with (an expert's first)."""


@dataclass(frozen=True, slots=True)
class StepDecision:
    """What the rule says of one step.

    ``compared`` is the sum that met the threshold (None where nothing was compared); ``accumulator`` is what is left
    of it after the step; ``anchor`` is the computed step whose residual this step uses (itself when computed).
    """

    compute: bool
    reason: str
    anchor: int
    accumulator: float = 0.0
    compared: float | None = None
    distance: float | None = None
    estimate: float | None = None


def polynomial(coefficients: Iterable[float], distance: float) -> float:
    """The polynomial's value by Horner's scheme; coefficients of any degree, the highest first."""
    value = 0.0
    for coefficient in coefficients:
        value = value * distance + coefficient
    return value


class Accumulator:
    """Estimated change since the last computed step of one branch. Neither clamped nor made absolute."""

    __slots__ = ("_coefficients", "_max_skip", "_threshold", "estimate", "skips", "value")

    def __init__(self, coefficients: Sequence[float], threshold: float, max_skip: int | None = None) -> None:
        self._coefficients = tuple(coefficients)
        self._threshold = threshold
        self._max_skip = max_skip
        self.value = 0.0
        self.skips = 0
        self.estimate = 0.0

    def reset(self) -> None:
        """A step is computed, for whatever reason: the sum and the run of skips start anew."""
        self.value = 0.0
        self.skips = 0

    def offer(self, distance: float) -> tuple[bool, str, float]:
        """Adds one step's distance. Returns whether to compute, the reason, and the sum that was compared.

        Skips while the sum is strictly below the threshold. A sum that is not a number is computed.
        """
        self.estimate = polynomial(self._coefficients, distance)
        compared = self.value + self.estimate
        if not math.isfinite(compared):
            reason = Reason.NOT_FINITE
        elif compared >= self._threshold:
            reason = "threshold"
        elif self._max_skip is not None and self.skips >= self._max_skip:
            reason = Reason.MAX_SKIP
        else:
            self.value = compared
            self.skips += 1
            return False, "below-threshold", compared
        self.reset()
        return True, reason, compared


def schedule(
    distances: Distances,
    coefficients: Sequence[float],
    threshold: float,
    first: int,
    last: int,
    forced: Collection[int] = (),
    max_skip: int | None = None,
) -> tuple[StepDecision, ...]:
    """The decision of every step of a run whose distances are known beforehand.

    ``distances[0]`` is never looked at. The first ``first`` and last ``last`` steps and those in ``forced`` are
    computed, as is every step without a distance; each computed step starts the sum anew.
    """
    total, window = len(distances), Window(first, last)
    accumulator = Accumulator(coefficients, threshold, max_skip)
    decisions: list[StepDecision] = []
    anchor = 0
    for index, distance in enumerate(distances):
        reason = window.reason(index, total) or ("forced" if index in forced else "")
        if not reason and (distance is None or index == 0):
            reason = "expert-start" if index else Reason.NOTHING_CACHED
        if reason or distance is None:
            accumulator.reset()
            anchor = index
            decisions.append(StepDecision(True, reason, anchor, distance=distance))
            continue
        compute, reason, compared = accumulator.offer(distance)
        anchor = index if compute else anchor
        decisions.append(
            StepDecision(compute, reason, anchor, accumulator.value, compared, distance, accumulator.estimate)
        )
    return tuple(decisions)


def first_fault(decisions: Iterable[StepDecision], threshold: float) -> int | None:
    """The first step at which the polynomial has left its domain: the sum is not finite, or below ``-threshold``.

    A polynomial far outside the range that it was fitted on returns large negative numbers, after which no later
    step would ever be computed.
    """
    for index, decision in enumerate(decisions):
        compared = decision.compared
        if compared is not None and not (math.isfinite(compared) and compared >= -threshold):
            return index
    return None
