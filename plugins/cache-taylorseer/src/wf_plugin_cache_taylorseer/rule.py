"""Which steps are computed, in plain Python: a step's number in, a reason out ("" where the step is skipped).

Source: "From Reusing to Forecasting: Accelerating Diffusion Models with TaylorSeers", arXiv 2503.06923. The interval is
section 3.2's N; the repeated pattern is how LightX2V runs the per-block variant on Wan. The steps that are computed in
any case (the first, the last, an expert's first) are not the rule's: `wf_core.api.scheduled` adds them.

How a skipped step is continued from the computed ones is `wf_core.api.Differences`: with ``g`` steps between the two
newest computed ones, ``F0`` the newest value and ``F(k+1) = (F(k) - older F(k)) / g``, the value ``d`` steps later is
``sum F(k) d^k / k!`` up to the order.
"""

from __future__ import annotations

from collections.abc import Sequence


def on_interval(index: int, interval: int) -> str:
    """A step is computed when its number, counted from where the interval starts, is a multiple of ``interval``."""
    return "" if index % interval else "interval"


def in_pattern(index: int, pattern: Sequence[bool]) -> str:
    """Step ``index`` (from 0) is computed where the pattern, repeated over the whole run, says true."""
    return "pattern" if pattern[index % len(pattern)] else ""
