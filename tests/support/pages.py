"""Pages as they are written: their code blocks, the files that they name, and what their commands print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
NAMED = re.compile(r"`([^`\s]+)`:\s*$")


@attrs.frozen
class Block:
    """One code block. ``file`` is the name that stands before it as ```NAME`:``, "" for none."""

    language: str
    text: str
    file: str
    line: int


@attrs.frozen
class Command:
    """A line after ``$`` in a console block, and what the page shows of its output."""

    line: str
    shown: str


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        before = NAMED.search(text[: found.start()])
        yield Block(found[1], found[2], before[1] if before else "", text.count("\n", 0, found.start()) + 1)


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        line, _, shown = part.partition("\n")
        yield Command(line, shown)


def agrees(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows.

    ``...`` stands for anything, on a line of its own for any number of lines; blanks count as one.
    """
    if not shown.strip():
        return True
    lines = [" ".join(line.split()) for line in printed.rstrip().splitlines()]
    pattern = ""
    for line in shown.rstrip().splitlines():
        words = " ".join(line.split())
        pattern += "(?:.*\n)*?" if words == "..." else ".*?".join(map(re.escape, words.split("..."))) + "\n"
    return re.fullmatch(pattern, "\n".join(lines) + "\n") is not None
