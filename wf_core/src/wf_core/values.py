"""Frozen values: what travels between layers is hashable, comparable and has one JSON form."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any


class FrozenMap(Mapping[str, Any]):
    """A read-only mapping with string keys in sorted order. Values are frozen too, so it can be hashed."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        named = {str(key): freeze(value) for key, value in (items or {}).items()}
        self._items: dict[str, Any] = dict(sorted(named.items()))

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


EMPTY = FrozenMap()


def freeze(value: Any) -> Any:
    """Lists become tuples, mappings `FrozenMap` and scalars of numpy Python's own, at every depth; the rest is kept."""
    if isinstance(value, FrozenMap):
        return value
    if isinstance(value, Mapping):
        return FrozenMap(value)
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(freeze(item) for item in value)
    return _plain(value)


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's: most of them are no ``int``, ``float`` or ``bool``, and none goes into JSON."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value


def deeper_than(value: Any, limit: int) -> bool:
    """Whether lists and mappings are nested more than ``limit`` deep. Does not recurse."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            item
            for holder in level
            if isinstance(holder, Mapping | list | tuple)
            for item in (holder.values() if isinstance(holder, Mapping) else holder)
        ]
        if not level:
            return False
    return True


def misfit(value: Any, deepest: int, bits: int) -> str:
    """Why plain data cannot be worked with: nested deeper than this, or a whole number of more bits. "" when it can."""
    if deeper_than(value, deepest):
        return "nested too deeply"
    level = [value]
    while level:
        if any(isinstance(item, int) and item.bit_length() > bits for item in level):
            return f"a whole number of more than {bits} bits"
        level = [
            item
            for holder in level
            if isinstance(holder, Mapping | list | tuple)
            for item in (holder.values() if isinstance(holder, Mapping) else holder)
        ]
    return ""


def thaw(value: Any) -> Any:
    """The plain form for JSON, at every depth: dicts, lists, and texts for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((thaw(item) for item in value), key=str)
    value = _plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def json_text(value: Any, indent: int | None = None) -> str:
    """Valid JSON in ASCII, whatever the value holds."""
    import json

    return json.dumps(thaw(value), indent=indent, ensure_ascii=True, allow_nan=False)


def canonical_json(value: Any) -> str:
    """One text for equal values, whatever the order in which they were built."""
    import json

    return json.dumps(thaw(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def show(value: Any) -> str:
    """A value as a person would type it in a request."""
    import json

    plain = thaw(value)
    try:
        return plain if isinstance(plain, str) else json.dumps(plain)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "(a number of thousands of digits)"


def clipped(text: str, most: int = 4000) -> str:
    """The text, without its middle where it is longer than a message may be."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end]} [... {len(text) - most} characters ...] {text[-end:]}"
