"""From the changes of dense runs to a codebook: which share of the steps gets which rate, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wf_plugin_cache_adacache.rule import Codebook

SHARES = ((0.10, 6), (0.20, 5), (0.35, 4), (0.65, 3), (0.85, 2))
"""The share of the steps whose change is below a threshold, and the rate of that threshold: the published rates, spread
so that the median step gets rate 3. What is above all thresholds gets rate 1."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the ascending values lie, linearly between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def above(value: float) -> float:
    """The least number of three digits that is above a value of 0 or more."""
    if value <= 0:
        return 1e-6
    exponent = math.floor(math.log10(value)) - 2
    found = float(f"{(math.floor(value / 10**exponent) + 1) * 10**exponent:.3g}")
    return found if found > value else float(f"{(math.floor(value / 10**exponent) + 2) * 10**exponent:.3g}")


def codebook(changes: Sequence[float], steps: int) -> Codebook:
    """The book of ``SHARES`` for the finite changes of runs of ``steps`` steps; one change at least.

    Thresholds that come out equal are one, with the rate nearest to that of the median step.
    """
    ordered = sorted(change for change in changes if math.isfinite(change))
    rows: dict[float, int] = {}
    for share, rate in SHARES:
        threshold = above(quantile(ordered, share))
        kept = rows.get(threshold)
        rows[threshold] = rate if kept is None or abs(rate - 3) < abs(kept - 3) else kept
    rows[above(max(ordered[-1], *rows))] = 1
    return Codebook(tuple(rows), tuple(rows.values()), steps)
