"""The functions of classes and of libraries: a patch of one changes every model that uses it, also the user's.

torch itself replaces some functions of its own when something is compiled for the first time; what it puts there comes
from torch and is no patch. Where a function comes from is told by the module that it was written in, not by the name
that it carries: a wrapper takes over the name of what it wraps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

_LIBRARY = "torch"
_FUNCTIONS = (FunctionType, property, classmethod, staticmethod)
_EVERYBODYS = ("torch", "torch.nn.functional")
"""Modules whose functions a model calls, wherever its own classes come from."""


Functions = Mapping[str, "tuple[int, str]"]
"""Name -> identity and the package that the function comes from."""


def class_functions(classes: Iterable[type]) -> dict[str, Functions]:
    """For each class and each of its bases, by full name: every function that it defines."""
    return {
        f"class {cls.__module__}.{cls.__qualname__}": {
            key: (id(value), _package(value))
            for key, value in vars(cls).items()
            if isinstance(value, _FUNCTIONS)
        }
        for cls in _with_bases(classes)
    }


def module_functions(classes: Iterable[type]) -> dict[str, Functions]:
    """For each module that these classes and their bases come from, and for torch's own: every function in it."""
    names = {*_EVERYBODYS, *(cls.__module__ for cls in _with_bases(classes))}
    modules = {name: sys.modules[name] for name in sorted(names) if name in sys.modules}
    return {
        f"module {name}": {
            key: (id(value), _package(value))
            for key, value in list(vars(module).items())
            if callable(value) and not isinstance(value, type)
        }
        for name, module in modules.items()
    }


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
        old, new = before[name], after[name]
        names = old.keys() | new.keys() if name.startswith("class ") else old.keys() & new.keys()
        other = sorted(key for key in names if old.get(key) != new.get(key))
        changed = [key for key in other if key not in new or new[key][1] != _LIBRARY]
        if changed:
            lines.append(f"{name}: {', '.join(changed)} patched")
    return lines
