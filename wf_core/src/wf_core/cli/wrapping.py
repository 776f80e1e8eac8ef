"""Text for people in lines that fit: as wide as the terminal, 80 columns where stdout is none."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping

import click

WIDEST = 120


def wrapped(text: str, first: str = "", rest: str | None = None) -> str:
    """The text in lines that begin with ``first``, then with ``rest`` (blanks as wide as ``first`` unless given).

    Words, among them request keys and names with hyphens, are never broken.
    """
    width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
    return textwrap.fill(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def echo_pairs(pairs: Mapping[str, str]) -> None:
    """``name  value`` with the names aligned and long values below themselves; empty values are left out."""
    shown = {name: value for name, value in pairs.items() if value}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        click.echo(wrapped(value, f"{name.ljust(width)}  "))


def echo_entries(title: str, entries: Iterable[tuple[str, str]]) -> None:
    """A title, and below it each head with its text indented further; nothing at all when there is no entry."""
    for number, (head, text) in enumerate(entries):
        if number == 0:
            click.echo(title)
        click.echo(wrapped(head, "  ", "    "))
        if text:
            click.echo(wrapped(text, "      "))
