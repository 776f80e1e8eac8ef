"""The functions of classes: a patch of a class changes every model that is made of it, also the user's.

torch itself replaces some functions of its own classes when something is compiled for the first time; what it puts
there comes from torch and is no patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

_LIBRARY = "torch"
_FUNCTIONS = (FunctionType, property, classmethod, staticmethod)


Functions = Mapping[str, "tuple[int, str]"]
"""Name -> identity and the package that the function comes from."""


def class_functions(classes: Iterable[type]) -> dict[str, Functions]:
    """For each class and each of its bases, by full name: every function that it defines."""
    known: dict[type, Functions] = {}
    for cls in classes:
        for base in cls.__mro__:
            if base is not object and base not in known:
                known[base] = {
                    key: (id(value), _package(value))
                    for key, value in vars(base).items()
                    if isinstance(value, _FUNCTIONS)
                }
    return {f"{cls.__module__}.{cls.__qualname__}": functions for cls, functions in known.items()}


def _package(value: Any) -> str:
    function = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
    return str(getattr(function, "__module__", "")).partition(".")[0]


def class_diff(before: Mapping[str, Functions], after: Mapping[str, Functions]) -> list[str]:
    """One line per class whose functions changed: which were patched, added or removed."""
    lines = []
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        names = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        changed = [key for key in names if key not in new or new[key][1] != _LIBRARY]
        if changed:
            lines.append(f"class {name}: {', '.join(changed)} patched")
    return lines
