"""The functions of classes and of libraries: a patch of one changes every model that uses it, also the user's.

torch itself replaces some functions of its own when something is compiled for the first time; what it puts there comes
from torch and is no patch. Where a function comes from is told by the module that it was written in, not by the name
that it carries: a wrapper takes over the name of what it wraps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

_LIBRARY = "torch"
_FUNCTIONS = (FunctionType, property, classmethod, staticmethod)
_EVERYBODYS = ("torch", "torch.nn.functional")
"""Modules whose functions a model calls, wherever its own classes come from."""


Functions = Mapping[str, Any]
"""What a class or module holds, by name: taken whole, which is cheap. Functions are told apart on a difference."""


def class_functions(classes: Iterable[type]) -> dict[str, Functions]:
    """What each class and each of its bases holds, by full name."""
    return {f"class {cls.__module__}.{cls.__qualname__}": dict(vars(cls)) for cls in _with_bases(classes)}


def module_functions(classes: Iterable[type]) -> dict[str, Functions]:
    """What each module holds that these classes and their bases come from, and torch's own modules."""
    names = {*_EVERYBODYS, *(cls.__module__ for cls in _with_bases(classes))}
    return {f"module {name}": dict(vars(sys.modules[name])) for name in sorted(names) if name in sys.modules}


def _with_bases(classes: Iterable[type]) -> dict[type, None]:
    return {base: None for cls in classes for base in cls.__mro__ if base is not object}


def _package(value: Any) -> str:
    function = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
    written_in = getattr(function, "__globals__", {}).get("__name__") or getattr(function, "__module__", "")
    return str(written_in or "").partition(".")[0]


def class_diff(before: Mapping[str, Functions], after: Mapping[str, Functions]) -> list[str]:
    """One line per class or module whose functions changed: which were patched, added (to a class) or removed."""
    lines = []
    for name in sorted(before.keys() & after.keys()):
        of_class = name.startswith("class ")
        changed = sorted(_changed(before[name], after[name], of_class))
        if changed:
            lines.append(f"{name}: {', '.join(changed)} patched")
    return lines


def _changed(old: Functions, new: Functions, of_class: bool) -> Iterator[str]:
    for key in old.keys() | new.keys() if of_class else old.keys() & new.keys():
        was, now = old.get(key), new.get(key)
        if was is now or not (_is_function(was, of_class) or _is_function(now, of_class)):
            continue
        if key not in new or _package(now) != _LIBRARY:
            yield key


def _is_function(value: Any, of_class: bool) -> bool:
    return isinstance(value, _FUNCTIONS) if of_class else callable(value) and not isinstance(value, type)
