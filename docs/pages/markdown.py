"""The few pieces of Markdown that the generated pages are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 120


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells that are the same in every row still stand there, so that a search finds them."""
    lines = [f"| {' | '.join(headers)} |", "|" + "---|" * len(headers)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def prose(sentences: str) -> str:
    """A paragraph in lines of the width that the other pages have."""
    return textwrap.fill(sentences, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def text(sentence: str) -> str:
    """Plain text in a cell: nothing in it is taken for HTML or for the end of the cell."""
    return sentence.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def code(word: str) -> str:
    """A word as it is typed."""
    return f"`{word}`".replace("|", "\\|")


def codes(words: Iterable[str]) -> str:
    """Several words as they are typed."""
    return ", ".join(code(word) for word in words)


def yes(holds: bool) -> str:
    """The cell of a column that asks whether."""
    return "yes" if holds else "not yet"
