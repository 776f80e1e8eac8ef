"""Names: one normal form, and the nearest known name for a message that teaches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

LONGEST = 100
"""A longer name is no slip of the pen, and comparing two of them takes the product of their lengths."""


def normalise(name: str) -> str:
    """The normal form of a distribution or plugin name (PEP 503): ``WF_My.Cache`` becomes ``wf-my-cache``."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def switch_key(name: str) -> str:
    """The normal form of a request key: ``-`` and ``_`` are the same, case is not changed."""
    return name.strip().replace("-", "_")


def folded(name: str) -> str:
    """The normal form of a selector's value, for comparing: like that of a key, and in small letters."""
    return switch_key(name).lower()


def nearest(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The known names most like ``name``, best first; empty when none is close."""
    if len(name) > LONGEST:
        return ()
    return _nearest(name, tuple(sorted({other for other in known if len(other) <= LONGEST})), count)


@lru_cache(maxsize=4096)
def _nearest(name: str, names: tuple[str, ...], count: int) -> tuple[str, ...]:
    import difflib

    by_folded = {known_name.lower(): known_name for known_name in names}
    found = difflib.get_close_matches(name.lower(), list(by_folded), n=count, cutoff=0.6)
    return tuple(by_folded[folded] for folded in found)


def repeated(names: Iterable[str]) -> tuple[str, ...]:
    """The names that are there more than once, in order."""
    return tuple(sorted(name for name, count in Counter(names).items() if count > 1))


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``; did you mean X?``, or ``otherwise`` when no known name is close."""
    return suggestion(nearest(name, known), otherwise)


def suggestion(names: tuple[str, ...], otherwise: str = "") -> str:
    """The same for names that are found already."""
    return f"; did you mean {' or '.join(names)}?" if names else otherwise
