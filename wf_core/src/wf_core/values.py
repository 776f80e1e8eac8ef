"""Frozen values: what travels between layers is hashable, comparable and has one JSON form."""

from __future__ import annotations

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
    """Lists become tuples, mappings become `FrozenMap`, at every depth; everything else is kept."""
    if isinstance(value, FrozenMap):
        return value
    if isinstance(value, Mapping):
        return FrozenMap(value)
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """The plain form for JSON: mappings become dicts and tuples become lists, at every depth."""
    if isinstance(value, Mapping):
        return {str(key): thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((thaw(item) for item in value), key=str)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def canonical_json(value: Any) -> str:
    """One text for equal values, whatever the order in which they were built."""
    import json

    return json.dumps(thaw(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def show(value: Any) -> str:
    """A value as a person would type it in a request."""
    import json

    return value if isinstance(value, str) else json.dumps(thaw(value))
