"""How commands write: one JSON object, or a table that is plain text where stdout is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from wf_core.cli.answer import Answer
from wf_core.errors import BadInput
from wf_core.plugins.discovery import Discovery
from wf_core.values import json_text


def print_json(value: Mapping[str, Any]) -> None:
    """The one object that ``--json`` promises on stdout."""
    context = click.get_current_context(silent=True)
    answer = context.find_object(Answer) if context is not None else None
    if answer is None:
        click.echo(json_text(value, indent=2))
    else:
        answer.give(value)


def soundness(discovery: Discovery) -> int:
    """The exit code of a command that shows what is there, whatever its state; what is wrong goes to stderr."""
    wrong = list(discovery.problems)
    try:
        discovery.require_sound()
    except BadInput as error:
        wrong.append(str(error))
    if wrong:
        click.echo("wf: " + " ".join("; ".join(wrong).split()), err=True)
    return 2 if wrong and discovery.strict else 0


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; with rich on a terminal, else aligned columns that a script can read."""
    if sys.stdout.isatty():
        _rich_table(headers, rows)
        return
    widths = [max(len(row[index]) for row in (headers, *rows)) for index in range(len(headers))]
    for row in (headers, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def print_pairs(pairs: Mapping[str, str]) -> None:
    """``name  value`` lines, the names aligned."""
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        click.echo(f"{name.ljust(width)}  {value}".rstrip())


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(_styled(cell) for cell in row))
    Console(highlight=False).print(table)


def _styled(cell: str) -> str:
    from rich.markup import escape

    colours = {"available": "green", "unavailable": "yellow", "blocked": "dim", "broken": "red"}
    colours |= {"incompatible": "red", "ambiguous": "yellow"}
    text = escape(cell)
    return f"[{colours[cell]}]{text}[/]" if cell in colours else text
