"""A matrix as text: the features by kind, and for each what it is refused or untested with, by code."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator

from wf_core.cli.machine import processes
from wf_core.resolving.matrix import LEGAL, ONE_VALUE, REFUSED, UNTESTED, Entry, Matrix

PLACE = "one at a time"
_WORDS = {REFUSED: "not with", UNTESTED: "untested with", PLACE: "one at a time with"}
SEVERAL = 3
"""A kind of fewer features than this is told by their names."""


def lines(matrix: Matrix, width: int | None = None) -> Iterator[str]:
    """The whole text. Every code that occurs is explained once, at the end."""
    width = width or max(80, min(140, shutil.get_terminal_size((110, 24)).columns))
    yield summary(matrix)
    for kind, entries in matrix.kinds().items():
        yield ""
        yield kind
        for entry in entries:
            yield from _feature(entry, matrix, width)
    yield ""
    if any(entry.offer.declared_only for entry in matrix.features):
        yield "* cannot be activated yet, only judged"
    yield from _legend(matrix, width)


def summary(matrix: Matrix) -> str:
    """What the matrix is of, and how many pairs are what."""
    counts = matrix.counts()
    alone = sum(entry.alone == REFUSED for entry in matrix.features)
    return (
        f"{matrix.model} on {matrix.device}, {processes(matrix.world)}: {len(matrix.features)} features, "
        f"{alone} of them refused alone; {len(matrix.pairs)} pairs: {counts['legal']} legal, "
        f"{counts['untested']} untested, {counts['refused'] - counts['only_alone']} refused together, "
        f"{counts['only_alone']} refused for one of the two alone"
    )


def alone_words(entry: Entry) -> str:
    """The verdict about one feature alone, in words."""
    if entry.alone != REFUSED:
        return entry.alone
    first = entry.violations[0]
    more = [code for code in entry.codes if code != first.code]
    reason = f"{first.code} {first.reason.rstrip('.')}" + (f" (also {', '.join(more)})" if more else "")
    return (
        f"only with --world {entry.needs_world}: {reason}"
        if entry.needs_world
        else f"refused alone: {reason}"
    )


def clashes(entry: Entry, matrix: Matrix) -> list[tuple[str, tuple[str, ...], list[str]]]:
    """What a feature is not free to be with: "refused", "untested" or "one at a time", the codes, and the others."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    places: list[str] = []
    for pair in matrix.pairs:
        if entry.name not in (pair.a, pair.b) or not pair.between:
            continue
        other = pair.b if pair.a == entry.name else pair.a
        codes = tuple(sorted({violation.code for violation in pair.between}))
        if pair.one_place:
            places += [code for code in codes if code not in places]
            found.setdefault((PLACE, ()), []).append(other)
        else:
            forbids = any(violation.level == "forbid" for violation in pair.between)
            found.setdefault((REFUSED if forbids else UNTESTED, codes), []).append(other)
    rows = [(word, codes or tuple(sorted(places)), others) for (word, codes), others in found.items()]
    return sorted(rows, key=lambda row: ((REFUSED, UNTESTED, PLACE).index(row[0]), row[1]))


def said(matrix: Matrix) -> dict[str, str]:
    """Every code between two features with one sentence of it, in order of codes."""
    first: dict[str, str] = {ONE_VALUE: "They are values of one key, and a request can name one of them."}
    codes = set()
    for violation in (violation for pair in matrix.pairs for violation in pair.between):
        first.setdefault(violation.code, violation.reason)
        codes.add(violation.code)
    return {code: first[code] for code in sorted(codes)}


def grouped(others: Iterable[str], entry: Entry, matrix: Matrix) -> list[str]:
    """Names, but one phrase for all features of a kind, and for all others of the feature's own kind or place."""
    left = list(others)
    words = []
    slot = entry.offer.feature.slot
    rivals = [o.name for o in matrix.features if slot and o.offer.feature.slot == slot and o is not entry]
    if len(rivals) >= SEVERAL and set(rivals) <= {*left}:
        words.append(f"every other {slot}")
        left = [name for name in left if name not in rivals]
    for kind, entries in matrix.kinds().items():
        names = [other.name for other in entries if other is not entry]
        if len(names) >= SEVERAL and set(names) <= {*left}:
            words.append(f"every other {kind}" if kind == entry.offer.feature.kind else f"every {kind}")
            left = [name for name in left if name not in names]
    return [*words, *left]


def _feature(entry: Entry, matrix: Matrix, width: int) -> Iterator[str]:
    name = entry.name + ("*" if entry.offer.declared_only else "")
    parts = [] if entry.alone == LEGAL else [alone_words(entry)]
    for word, codes, others in clashes(entry, matrix):
        names = ", ".join(grouped(others, entry, matrix))
        parts.append(f"{_WORDS[word]} {names} ({', '.join(codes)})")
    text = "; ".join(parts) or "goes with everything"
    yield from textwrap.wrap(
        f"  {name.ljust(24)}  {text}", width, subsequent_indent=" " * 28, break_on_hyphens=False
    )


def _legend(matrix: Matrix, width: int) -> Iterator[str]:
    for code, reason in said(matrix).items():
        yield from textwrap.wrap(
            f"{code}  {reason}", width, subsequent_indent=" " * 9, break_on_hyphens=False
        )
