"""The one JSON object that ``--json`` promises on stdout, whatever else a command, a plugin or a library prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

HELP = ("-h", "--help")


class Answer:
    """Where the object goes. ``given`` tells whether it has been written: there is never a second one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.given = False

    def give(self, value: Mapping[str, Any]) -> None:
        """Write the object, the first time."""
        from wf_core.values import json_text

        if self.given:
            return
        self.given = True
        self._stream.write(json_text(value, indent=2) + "\n")
        self._stream.flush()


def wanted(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON. Looked at before it is parsed: a usage error is answered in JSON too."""
    own = list(arguments)
    own = own[: own.index("--")] if "--" in own else own
    return "--json" in own and not any(word in own for word in HELP)


@contextmanager
def answering() -> Iterator[Answer]:
    """Everything that is printed goes to stderr, but for the answer, which goes to what stdout was.

    Descriptor 1 is moved for the rest of the process, because C libraries and exit handlers write after the command
    has ended. Where ``sys.stdout`` is not descriptor 1 (a test captures it), only ``sys.stdout`` is moved, and comes
    back.
    """
    outer = sys.stdout
    outer.flush()
    sys.stdout = sys.stderr
    if _descriptor(outer) == 1:
        stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        yield Answer(stream)
        return
    try:
        yield Answer(outer)
    finally:
        sys.stdout = outer


def open_closed_streams() -> None:
    """A stdout or stderr that the caller has closed (``>&-``) becomes one that takes everything and keeps nothing.

    The descriptor is filled too, or the next file that is opened would get it, and with it whatever is printed.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            _fill(number)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _fill(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_WRONLY)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
