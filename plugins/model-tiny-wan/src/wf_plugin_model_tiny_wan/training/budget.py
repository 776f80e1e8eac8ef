"""How long to train, and the learning rate that goes with it."""

import math
import time
from dataclasses import dataclass, field


@dataclass
class Budget:
    """A training length in seconds or, if ``steps`` is given, in steps; the clock starts at the first question."""

    seconds: float
    steps: int | None = None
    started: float | None = field(default=None, init=False)

    def progress(self, step: int) -> float:
        """Return the part of the budget that is used up before ``step`` runs; 1.0 or more means stop."""
        if self.steps is not None:
            return step / self.steps
        if self.started is None:
            self.started = time.monotonic()
        return (time.monotonic() - self.started) / self.seconds


def cosine(progress: float, warmup: float = 0.02) -> float:
    """Return the factor of the learning rate: a linear warm-up, then a half cosine down to 0."""
    if progress < warmup:
        return (progress + 1e-3) / (warmup + 1e-3)
    return 0.5 + 0.5 * math.cos(math.pi * min((progress - warmup) / (1 - warmup), 1.0))
