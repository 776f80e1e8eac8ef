"""The decision rule of EasyCache, in plain Python: numbers in, decisions out. No tensor, no model, no clock.

Source: "Less is Enough: Training-Free Video Diffusion Acceleration via Runtime-Adaptive Caching", arXiv 2507.02860,
section 3, with the settings of the authors' code for Wan. ``x`` is the latent and ``v`` the transformer's output; all
sizes and changes are means of absolute values, and rates and estimates have no unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from wf_core.api import (
    Reason,
)

GUARD = 1e-6
"""What the caller holds the denominators above, against a latent that stands still and an output of zeros."""

Number = TypeVar("Number")
"""A float, or a tensor with one number per sample."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one session; see the manifest for what they mean and their ranges."""

    threshold: float = 0.05
    first: int = 10
    last: int = 1
    max_skip: int | None = None


def rate(output_change: Number, latent_change: Number) -> Number:
    """``k = |v_a - v_b| / |x_a - x_b|``: the output's change per change of the latent, between two computed steps."""
    return output_change / latent_change  # type: ignore[operator,no-any-return]


def estimate(k: Number, output_size: Number, latent_change: Number | float = 1.0) -> Number:
    """``k |x_i - x_(i-1)| / |v|``: one step's expected relative change of the output, ``v`` the last computed one.

    Without a change it is that of a change of 1, to be multiplied by the changes to come.
    """
    return k / output_size * latent_change  # type: ignore[operator,no-any-return]


class Skips:
    """Compares the sum of estimates since the last computed step with the threshold, and counts the run of skips."""

    __slots__ = ("_max_skip", "_threshold", "run")

    def __init__(self, threshold: float, max_skip: int | None = None) -> None:
        self._threshold = threshold
        self._max_skip = max_skip
        self.run = 0

    def reset(self) -> None:
        """A step is computed, for whatever reason: the run of skips starts anew."""
        self.run = 0

    def offer(self, accumulated: float) -> tuple[bool, str]:
        """Whether to compute, and why. Skips while the sum is strictly below the threshold, and never on NaN."""
        if not math.isfinite(accumulated):
            reason = Reason.NOT_FINITE
        elif accumulated >= self._threshold:
            reason = "threshold"
        elif self._max_skip is not None and self.run >= self._max_skip:
            reason = Reason.MAX_SKIP
        else:
            self.run += 1
            return False, "below-threshold"
        self.reset()
        return True, reason


def free_steps(total: int, experts: Sequence[str], first: int, last: int) -> int:
    """How many of ``total`` steps the rule decides about.

    Not the ``first`` and ``last``, nor the first two of an expert: a rate takes two computed steps. ``experts`` names
    the expert of each step; empty for one.
    """
    found = before = 0
    for index in range(total):
        same = index > 0 and (not experts or experts[index] == experts[index - 1])
        before = before + 1 if same else 0
        found += before >= 2 and first <= index < total - last
    return found
