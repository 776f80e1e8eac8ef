"""Counters: what the report calls evidence. They belong to one run and are only ever counted up."""

from __future__ import annotations

from collections import Counter

from attrs import frozen


@frozen
class Fallback:
    """A computation that a feature was asked for and did not do, with the reason, counted."""

    feature: str
    seam: str
    reason: str
    count: int


class Counters:
    """Counts of one run, by feature and name. A key is made on first use; nothing here touches a device."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._fallbacks: Counter[tuple[str, str, str]] = Counter()

    def add(self, feature: str, name: str, amount: int = 1) -> None:
        self._counts[feature, name] += amount

    def fall_back(self, feature: str, seam: str, reason: str) -> None:
        self._fallbacks[feature, seam, reason] += 1

    def of(self, feature: str) -> dict[str, int]:
        return {name: count for (owner, name), count in self._counts.items() if owner == feature}

    def fallbacks(self) -> tuple[Fallback, ...]:
        return tuple(Fallback(*key, count) for key, count in sorted(self._fallbacks.items()))


class FeatureCounters:
    """One feature's view of the counters of whichever run is open. What a technique counts with."""

    def __init__(self, feature: str) -> None:
        self.feature = feature
        self._run = Counters()

    def open(self, run: Counters) -> None:
        """The host's: a run begins, and is counted from here on."""
        self._run = run

    def add(self, name: str, amount: int = 1) -> None:
        """Counts something that was done in this run; a name is made on first use."""
        self._run.add(self.feature, name, amount)

    def fall_back(self, seam: str, reason: str) -> None:
        """Counts a call at a seam that the feature left to the stock code, with the reason for the report."""
        self._run.fall_back(self.feature, seam, reason)
