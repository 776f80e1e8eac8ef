"""The keys of a request: normal spelling, aliases, dots, and which distribution brings a key that is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from wf_core import data
from wf_core.names import switch_key
from wf_core.values import FrozenMap, freeze, show


@attrs.frozen
class Asked:
    """One key of a request. ``nested`` holds what dotted keys below it say; ``given`` whether it stood alone too."""

    key: str
    value: Any = None
    given: bool = False
    nested: FrozenMap = attrs.field(factory=FrozenMap)

    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """The key and the dotted keys below it with their values: the request in normal form."""
        own = ((self.key, self.value),) if self.given else ()
        return (*own, *((f"{self.key}.{name}", value) for name, value in self.nested.items()))


def gather(
    request: Mapping[str, Any], canonical: Callable[[str], str]
) -> tuple[tuple[Asked, ...], tuple[tuple[str, str], ...]]:
    """The keys in order of their names, and the (key, values) of those given twice with different values.

    ``None`` stands for a key that is not there.
    """
    values: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    clashes: list[tuple[str, str]] = []

    def put(into: dict[str, Any], name: str, value: Any, shown: str) -> None:
        if name in into and differ(into[name], value):
            clashes.append((shown, f"{show(into[name])} and {show(value)}"))
        into.setdefault(name, value)

    for raw, item in sorted(request.items(), key=lambda pair: str(pair[0])):
        value = freeze(item)
        head, _, path = switch_key(str(raw)).partition(".")
        key = canonical(head)
        if value is None:
            continue
        if path:
            put(nested.setdefault(key, {}), path, value, f"{key}.{path}")
        else:
            put(values, key, value, key)
    keys = sorted({*values, *nested})
    asked = tuple(Asked(key, values.get(key), key in values, FrozenMap(nested.get(key))) for key in keys)
    return asked, tuple(clashes)


def differ(one: Any, other: Any) -> bool:
    """Whether two values of a request say different things: 0 is a number and not false, whatever Python holds."""
    return isinstance(one, bool) != isinstance(other, bool) or bool(one != other)


def distribution_of(key: str, value: str = "") -> str:
    """The distribution that brings a switch, or a selector's value, when no installed plugin does; "" if unknown."""
    known = data.table("known_switches")
    if not value:
        return str(known["switch"].get(key, ""))
    return str(known["value"].get(key, {}).get(switch_key(value).lower(), ""))
