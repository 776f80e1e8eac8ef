"""The functions of classes: a patch of a class changes every model that is made of it, also the user's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

_FUNCTIONS = (FunctionType, property, classmethod, staticmethod)


def class_functions(classes: Iterable[type]) -> dict[str, dict[str, int]]:
    """For each class and each of its bases, by full name: the identity of every function that it defines."""
    known: dict[type, dict[str, int]] = {}
    for cls in classes:
        for base in cls.__mro__:
            if base is not object and base not in known:
                known[base] = {
                    key: id(value) for key, value in vars(base).items() if isinstance(value, _FUNCTIONS)
                }
    return {f"{cls.__module__}.{cls.__qualname__}": functions for cls, functions in known.items()}


def class_diff(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line per class whose functions changed: which were patched, added or removed."""
    lines = []
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        if changed:
            lines.append(f"class {name}: {', '.join(changed)} patched")
    return lines
