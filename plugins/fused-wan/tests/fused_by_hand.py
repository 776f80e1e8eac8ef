"""Techniques without a session: counters and variants that a test can look into."""

from __future__ import annotations

from collections import Counter


class Counts:
    """Stands in for a feature's counters."""

    def __init__(self):
        self.seen = Counter()
        self.reasons = Counter()

    def add(self, name, amount=1):
        self.seen[name] += amount

    def fall_back(self, seam, reason):
        self.reasons[seam, reason] += 1


class Made:
    """Stands in for a feature's variants: each is built once."""

    def __init__(self):
        self.built = {}

    def get(self, key, sources, build):
        name = (key, *map(id, sources))
        if name not in self.built:
            self.built[name] = build()
        return self.built[name]


def ready(technique):
    """The technique as the host hands it its counters and variants."""
    technique.counters = Counts()
    technique.variants = Made()
    return technique
