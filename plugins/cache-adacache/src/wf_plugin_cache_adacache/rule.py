"""The decision rule of AdaCache, in plain Python: numbers in, rates out. No tensor, no model, no clock.

Source: "Adaptive Caching for Faster Video Generation with Diffusion Transformers", arXiv 2411.02397, as LightX2V runs
it on Wan (ModelTC/LightX2V, WanTransformerInferAdaCaching). All numbers are float64 and have no unit. A *rate* is the
number of solver steps from a computed step to the next one: 1 skips none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

STILL = 1.0
"""The motion's weight where motion is not looked at, and before it was looked at for the first time."""

MOST_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Codebook:
    """Rates by change: the first threshold above a change gives its rate, and the last rate stands for all others.

    ``steps`` is the number of solver steps that the rates were made for; 0 means that they hold for any.
    """

    thresholds: tuple[float, ...]
    rates: tuple[int, ...]
    steps: int = 0

    def __post_init__(self) -> None:
        bounds = self.thresholds
        if not 0 < len(bounds) <= MOST_ENTRIES or len(bounds) != len(self.rates):
            raise ValueError(f"a codebook has 1 to {MOST_ENTRIES} thresholds and as many rates")
        if not all(map(math.isfinite, bounds)) or bounds[0] <= 0:
            raise ValueError("the thresholds of a codebook are finite and above 0")
        if any(low >= high for low, high in itertools.pairwise(bounds)):
            raise ValueError("the thresholds of a codebook ascend")
        if min(self.rates) < 1 or self.steps < 0:
            raise ValueError("the rates of a codebook are 1 or more")

    def rate(self, change: float) -> int:
        """After how many steps the next one is computed."""
        for threshold, rate in zip(self.thresholds, self.rates, strict=True):
            if change < threshold:
                return rate
        return self.rates[-1]

    def scaled(self, total: int) -> Codebook:
        """The same book for a run of ``total`` steps: rates grow and shrink with it, rounded down, never below 1."""
        if not self.steps or not total:
            return self
        rates = tuple(max(1, rate * total // self.steps) for rate in self.rates)
        return Codebook(self.thresholds, rates, total)


@dataclass(frozen=True, slots=True)
class Motion:
    """How the motion between frames weighs a change (section 3.3 of the paper, "motion regularization").

    ``((motion / scale) ** power) / divisor`` at the steps from ``int(first * N)`` to ``int(last * N)`` inclusive.
    ``gradient`` is what the weight's own change counts.
    """

    first: float = 0.1
    last: float = 0.9
    scale: float = 0.385
    power: float = 8.0
    divisor: float = 1.0
    gradient: float = 10.0

    def covers(self, index: int, total: int) -> bool:
        """Whether motion is looked at in step ``index`` of ``total``."""
        return int(self.first * total) <= index <= int(self.last * total)

    def weight(self, motion: float) -> float:
        """The weight of a motion between frames, 0 (all are equal) to 1 (they have nothing in common)."""
        return (motion / self.scale) ** self.power / self.divisor


@dataclass(frozen=True, slots=True)
class Verdict:
    """How long a computed step's residual lasts. ``change`` is the largest of the batch; NaN where one is not finite.

    ``cut`` says that the threshold, and not the codebook, gave the rate.
    """

    rate: int
    change: float
    cut: bool = False

    @property
    def finite(self) -> bool:
        """Whether there was a number to decide by."""
        return math.isfinite(self.change)


class Rater:
    """Gives one branch its rates, one computed step after another. A batch is decided by its worst sample.

    With ``moved`` the relative L1 change of a sample's signal over ``gap`` steps, ``M`` the weight of its motion now
    and ``M'`` the weight before, the codebook is asked for ``moved / gap * (M + |gradient * (M - M') / gap|)``;
    without motion for ``moved / gap``.
    """

    __slots__ = ("_book", "_motion", "_threshold", "_weights")

    def __init__(self, book: Codebook, motion: Motion | None = None, threshold: float | None = None) -> None:
        self._book = book
        self._motion = motion
        self._threshold = threshold
        self._weights: tuple[float, ...] = ()

    def restart(self) -> None:
        """There is nothing to compare with: motion starts anew."""
        self._weights = ()

    def changes(self, moved: Sequence[float], motions: Sequence[float] | None, gap: int) -> tuple[float, ...]:
        """The change of each sample. ``motions`` is None where motion is not looked at in this step."""
        if self._motion is None:
            return tuple(value / gap for value in moved)
        before = self._weights if len(self._weights) == len(moved) else (STILL,) * len(moved)
        now = (STILL,) * len(moved) if motions is None else tuple(map(self._motion.weight, motions))
        self._weights = tuple(weight if math.isfinite(weight) else STILL for weight in now)
        pull = self._motion.gradient / gap
        return tuple(
            value / gap * (weight + abs(pull * (weight - old)))
            for value, weight, old in zip(moved, now, before, strict=True)
        )

    def verdict(self, moved: Sequence[float], motions: Sequence[float] | None, gap: int) -> Verdict:
        """The rate after a computed step, from each sample's change since the one ``gap`` steps before."""
        changes = self.changes(moved, motions, gap)
        if not all(map(math.isfinite, changes)):
            return Verdict(1, math.nan)
        rate, largest = min(map(self._book.rate, changes)), max(changes)
        if self._threshold is not None and largest >= self._threshold and rate > 1:
            return Verdict(1, largest, cut=True)
        return Verdict(rate, largest)


def schedule(
    total: int, rate_at: Callable[[int], int], first: int = 0, last: int = 0, starts: Collection[int] = (0,)
) -> tuple[int, ...]:
    """The computed steps of a run whose rates are known: ``rate_at(step)`` is asked at computed steps.

    At the steps ``starts`` (an expert's first) nothing is kept and nothing can be compared, so that they and the step
    after them are computed.
    """
    computed: list[int] = []
    until = 0
    for index in range(total):
        if index in starts or index < first or index >= total - last or index >= until:
            until = index + (1 if index in starts else rate_at(index))
            computed.append(index)
    return tuple(computed)
