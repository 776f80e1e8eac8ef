"""Numbers of the command line: finite, and in a range. ``nan`` is in every range that click checks."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A finite number of a closed range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


SECONDS = Finite(min=0.01, max=86400)
FPS = Finite(min=0.01, max=1000)
"""The slowest is the smallest number that the writer of clips passes on to ffmpeg as more than nothing."""
SEED = click.IntRange(min=0, max=2**63 - 1)
