"""Whether a call is computed, and why: the words that the runtime, the plugins and the report share."""

from __future__ import annotations

from attrs import frozen


class Reason:
    """Reasons that mean the same in every cache, and that the runtime knows; others are the cache's own."""

    AMBIGUOUS = "ambiguous-identity"
    NOTHING_CACHED = "nothing-cached"
    GEOMETRY_CHANGED = "geometry-changed"
    NOT_FINITE = "not-finite"
    MAX_SKIP = "max-skip"
    UNKNOWN_STEPS = "unknown-steps"
    GRADIENTS = "gradients"


SENTENCES = {
    Reason.AMBIGUOUS: "the step and branch of a call could not be told; it was computed",
    Reason.NOT_FINITE: "what was compared was not a finite number; the step was computed",
    Reason.GRADIENTS: "gradients are recorded, which a prediction would cut off; the step was computed",
    Reason.UNKNOWN_STEPS: "the number of steps is not known, so the last ones cannot be told; the step was computed",
}
"""Reasons that mean that the feature could not decide: each is counted as a fallback, with this sentence."""


@frozen
class Decision:
    """Whether the model is computed at this call.

    ``reason`` is a short word for the report; ``metric`` what was compared, without a unit. ``fallback`` is a sentence
    where the feature could not decide and the call is computed for that; it is counted in the report.
    """

    compute: bool
    reason: str
    metric: float | None = None
    fallback: str = ""


@frozen
class CacheEvent:
    """One decision as the report shows it. ``share`` is the part of the model's blocks that ran, 0.0 to 1.0."""

    step: int
    expert: str
    branch: str
    computed: bool
    reason: str
    metric: float | None
    share: float


@frozen
class Window:
    """The steps that are always computed: ``first`` at the start of a run and ``last`` at its end."""

    first: int = 0
    last: int = 0

    def reason(self, index: int, total: int) -> str:
        """Why step ``index`` of ``total`` (0: not known) is computed whatever a rule says; "" when it is free."""
        if index < self.first:
            return "first-steps"
        if not total:
            return Reason.UNKNOWN_STEPS if self.last else ""
        return "last-steps" if index >= total - self.last else ""
