"""docs/authors/README.md: the table of kinds."""

from __future__ import annotations

from pages import kinds
from pages.marked import fill

NAME = "docs/authors/README.md"


def page() -> str:
    """The whole page."""
    return fill(NAME, {"kinds": kinds.overview})
