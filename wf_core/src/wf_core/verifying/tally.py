"""Adding up what the calls of one provider in one dtype gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wf_core.verifying.cases import Case
from wf_core.verifying.checks import Errors
from wf_core.verifying.limits import Limit
from wf_core.verifying.outcome import Worst

MEASURES = ("relative-l2", "max-abs", "cosine")


class Tally:
    """Counts, worst errors, and the first complaint with its call."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self.limits = limits
        self.calls = 0
        self.inputs = 0
        self.ineligible: Counter[str] = Counter()
        self.worst: dict[str, Worst] = {}
        self.complaint = ""

    def refuse(self, reason: str) -> None:
        """The provider would not serve a call."""
        self.ineligible[reason] += 1

    def complain(self, what: str, case: Case) -> None:
        """Something that makes the provider fail; the first is kept."""
        self.complaint = self.complaint or f"{what} at {case}"

    def measure(self, errors: Errors, case: Case) -> None:
        """One output's errors."""
        self.inputs += 1
        for measure in MEASURES:
            got = Limit(measure, 0.0, "").of(errors)
            before = self.worst.get(measure)
            if before is None or (got < before.value if measure == "cosine" else got > before.value):
                self.worst[measure] = Worst(got, str(case))
        for limit in self.limits:
            if not limit.kept(errors):
                self.complain(f"{limit.measure} {limit.of(errors):.3g}, its bound is {limit},", case)

    @property
    def reason(self) -> str:
        """The most frequent reason of the calls that were not served."""
        return next((reason for reason, _ in self.ineligible.most_common(1)), "no call was made")
