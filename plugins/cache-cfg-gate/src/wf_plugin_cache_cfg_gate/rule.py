"""The rule of the gate, in plain Python: numbers in, decisions out. No tensor, no model, no clock.

Source: classifier-free guidance, ``v = u + s (c - u)`` (arXiv 2207.12598, equation 6), with the difference ``c - u`` of
an earlier step in place of the current one. ``c`` and ``u`` are the conditional and the unconditional output of a step
and ``s`` is the guidance scale. That the difference changes slowly in the later steps is the observation behind the
guidance cache of FasterCache (arXiv 2410.19355, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TypeVar

ROUNDING = 1e-9
"""0.58 of 50 steps are 29, though 0.58 * 50 in float64 is just below it."""

Value = TypeVar("Value")


def first_gated(fraction: float, total: int) -> int:
    """``floor(fraction * total)``: the first of ``total`` steps without an unconditional call; ``total`` for none."""
    return min(total, math.floor(fraction * total + ROUNDING))


def least_fraction(total: int) -> float:
    """The least fraction that leaves one full step of ``total``, rounded up to four digits."""
    return math.ceil(1e4 / total) / 1e4


def decisions(
    fraction: float, total: int, experts: Sequence[str] = (), forced: Collection[int] = ()
) -> tuple[tuple[bool, str], ...]:
    """Whether the unconditional branch runs, and why, for each step.

    It runs before the gate, at an expert's first step, whose difference is another one, and where ``forced``.
    ``experts`` names the expert of each step; empty for one.
    """
    gate = first_gated(fraction, total)
    found = []
    for index in range(total):
        switch = bool(experts) and index > 0 and experts[index] != experts[index - 1]
        if index < gate:
            found.append((True, "before-gate"))
        elif switch:
            found.append((True, "expert-start"))
        else:
            found.append((True, "forced") if index in forced else (False, "gated"))
    return tuple(found)


def difference(cond: Value, uncond: Value) -> Value:
    """``delta = c - u`` of a full step, for numbers or tensors of one shape."""
    return cond - uncond  # type: ignore[operator,no-any-return]


def unconditional(cond: Value, delta: Value) -> Value:
    """``u' = c - delta``: with it the pipeline's own guidance gives ``c + (s - 1) delta``, whatever its scale."""
    return cond - delta  # type: ignore[operator,no-any-return]
