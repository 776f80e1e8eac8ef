"""The decision rules in plain Python: numbers in, decisions out. No tensor, no model, no clock.

Sources: the first-block and two-sided rules as LightX2V (reference: the previous step), ParaAttention and cache-dit
(reference: the last computed step) run them; all three skip while the difference is strictly below the threshold, and
so does this. The per-block rule is LightX2V's dynamic block cache. Differences are relative L1 changes, without a unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from wf_core.api import (
    Reason,
)

BELOW, THRESHOLD = "below-threshold", "threshold"

Part = Literal["front", "middle", "tail"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule says of one difference: whether to compute, and why."""

    compute: bool
    reason: str
    difference: float


class Rule:
    """One branch's (or one block's) rule: a threshold, and a limit on the skips in a row.

    ``skips`` is the number of consecutive skips up to now: any computed step, for whatever reason, sets it to 0 and
    the next skip to 1, so that no run is ever longer than ``max_skip``.
    """

    __slots__ = ("_max_skip", "_threshold", "skips")

    def __init__(self, threshold: float, max_skip: int | None = None) -> None:
        self._threshold = threshold
        self._max_skip = max_skip
        self.skips = 0

    def judge(self, difference: float) -> Verdict:
        """Skip while strictly below the threshold; a difference that is not a number is computed."""
        if not math.isfinite(difference):
            return Verdict(True, Reason.NOT_FINITE, difference)
        if not difference < self._threshold:
            return Verdict(True, THRESHOLD, difference)
        if self._max_skip is not None and self.skips >= self._max_skip:
            return Verdict(True, Reason.MAX_SKIP, difference)
        return Verdict(False, BELOW, difference)

    def took(self, computed: bool) -> None:
        """The step is over, and was computed or skipped."""
        self.skips = 0 if computed else self.skips + 1


def expected(difference: float, over: int, now: int) -> float:
    """A difference that grew over ``over`` solver steps, continued in proportion to ``now`` steps.

    A step counts as one where a driver calls the same step twice.
    """
    return difference / max(1, over) * max(1, now)


def reason_of(verdicts: Iterable[Verdict]) -> str:
    """One reason for a call whose blocks decide alone: why it skipped some, or what kept it from that."""
    found = {verdict.reason for verdict in verdicts}
    return next(
        (reason for reason in (BELOW, Reason.MAX_SKIP, Reason.NOT_FINITE) if reason in found), THRESHOLD
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """A stack of blocks in three parts: the first ``front`` and the last ``tail`` blocks run at every call."""

    front: int
    tail: int

    def of(self, index: int, layers: int) -> Part:
        """The part of block ``index`` of ``layers``; of an unknown number (0) none is told to be in the tail."""
        if index < self.front:
            return "front"
        in_tail = self.tail > 0 and layers > 0 and index >= layers - self.tail
        return "tail" if in_tail else "middle"

    def middle(self, layers: int) -> range:
        """The indices of the blocks that a skipped call leaves out."""
        return range(self.front, max(self.front, layers - self.tail))
