"""From measured points to a preset's numbers: the polynomial, how well it fits, and a threshold to start from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wf_core.api import Window
from wf_lib_teacache.rule import Distances, first_fault, polynomial, schedule

DEGREE = 4
"""The degree of all but one of the published Wan polynomials."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A least-squares polynomial, highest degree first.

    ``r2`` is the coefficient of determination over all points, ``domain`` the range of distances seen, and
    ``negative_share`` the share of points at which the polynomial is not above zero.
    """

    coefficients: tuple[float, ...]
    r2: float
    points: int
    domain: tuple[float, float]
    negative_share: float


def least_squares(points: Sequence[tuple[float, float]], degree: int = DEGREE) -> Fit | None:
    """Fits (distance, change) pairs in float64; None when they hold too few different distances for the degree."""
    kept = [(d, change) for d, change in points if math.isfinite(d) and math.isfinite(change)]
    if len({round(d, 9) for d, _ in kept}) <= degree:
        return None
    d = torch.tensor([pair[0] for pair in kept], dtype=torch.float64)
    change = torch.tensor([pair[1] for pair in kept], dtype=torch.float64)
    scale = float(d.abs().max())
    powers = torch.stack([(d / scale) ** k for k in range(degree, -1, -1)], dim=1)
    scaled: list[float] = torch.linalg.lstsq(powers, change, driver="gelsd").solution.tolist()
    coefficients = tuple(value / scale**k for value, k in zip(scaled, range(degree, -1, -1), strict=True))
    estimates = torch.tensor([polynomial(coefficients, value) for value in d.tolist()], dtype=torch.float64)
    return Fit(
        coefficients=coefficients,
        r2=_determination(change, estimates),
        points=len(kept),
        domain=(float(d.min()), float(d.max())),
        negative_share=float((estimates <= 0).double().mean()),
    )


def recommended_threshold(
    distances: Distances, coefficients: Sequence[float], first: int, last: int
) -> float | None:
    """The least threshold, to three digits, at which at least half of the free steps of this schedule are skipped.

    Free steps are those that the rule decides about. Decisions change only where the threshold passes the sum of the
    estimates of consecutive free steps, so those sums are the candidates. None when no candidate does it without the
    sum ever falling below ``-threshold``.
    """
    total, window = len(distances), Window(first, last)
    estimates = [
        None if d is None or window.reason(i, total) or i == 0 else polynomial(coefficients, d)
        for i, d in enumerate(distances)
    ]
    free = sum(estimate is not None for estimate in estimates)
    for threshold in sorted({_above(value) for value in _sums(estimates) if value > 0}):
        decisions = schedule(distances, coefficients, threshold, first, last)
        skipped = sum(not decision.compute for decision in decisions)
        if 2 * skipped >= free > 0 and first_fault(decisions, threshold) is None:
            return threshold
    return None


def _sums(estimates: Sequence[float | None]) -> list[float]:
    found = []
    for start in range(len(estimates)):
        total = 0.0
        for estimate in estimates[start:]:
            if estimate is None:
                break
            total += estimate
            found.append(total)
    return found


def _above(value: float) -> float:
    """The next number above ``value`` with three significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{(math.floor(value / unit) + 1) * unit:.3g}")


def _determination(seen: torch.Tensor, estimated: torch.Tensor) -> float:
    around = float(((seen - seen.mean()) ** 2).sum())
    left = float(((seen - estimated) ** 2).sum())
    return 1.0 - left / around if around > 0 else 0.0
