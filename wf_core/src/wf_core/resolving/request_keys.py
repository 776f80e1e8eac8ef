"""The keys of a request: normal spelling, aliases, dots, and which distribution brings a key that is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from wf_core import data
from wf_core.errors import BadInput
from wf_core.names import LONGEST, folded, switch_key
from wf_core.values import FrozenMap, clipped, freeze, misfit, show

DEEPEST = 16
MOST_BITS = 4096
MOST_KEYS = 200
"""All installed keys together are fewer."""


@attrs.frozen
class Asked:
    """One key of a request. ``nested`` holds what dotted keys below it say; ``given`` whether it stood alone too.
    ``spelled`` are the names that the user wrote for it: its own, or aliases.
    """

    key: str
    value: Any = None
    given: bool = False
    nested: FrozenMap = attrs.field(factory=FrozenMap)
    spelled: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name that the user wrote, where it is only one."""
        return self.spelled[0] if len(self.spelled) == 1 else self.key

    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """The key and the dotted keys below it with their values: the request in normal form."""
        own = ((self.key, self.value),) if self.given else ()
        return (*own, *((f"{self.key}.{name}", value) for name, value in self.nested.items()))


@attrs.frozen
class Clash:
    """A key that is given twice with different values, by each of these names."""

    key: str
    spelled: tuple[str, ...]
    values: str


def gather(
    request: Mapping[str, Any],
    canonical: Callable[[str], str],
    same: Callable[[str, Any, Any], bool] = lambda key, one, other: False,
) -> tuple[tuple[Asked, ...], tuple[Clash, ...]]:
    """The keys in order of their names, and those given twice with different values.

    ``None`` stands for a key that is not there; ``same`` says whether two values of a key are spellings of one. Raises
    `BadInput` for what is no mapping of plain values.
    """
    check_mapping(request)
    if len(request) > MOST_KEYS:
        raise BadInput(f"a request of {len(request)} keys: it takes {MOST_KEYS} at most")
    values: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    spelled: dict[str, list[str]] = {}
    clashes: list[Clash] = []

    def put(into: dict[str, Any], name: str, value: Any, key: str, path: str = "") -> None:
        if name in into and differ(into[name], value) and (path or not same(key, into[name], value)):
            both = f"{clipped(show(into[name]), 400)} and {clipped(show(value), 400)}"
            clashes.append(
                Clash(key + path, tuple(name + path for name in dict.fromkeys(spelled[key])), both)
            )
        into.setdefault(name, value)

    for raw, item in sorted(request.items(), key=lambda pair: str(pair[0])):
        value = _plain_value(str(raw), item)
        head, _, path = switch_key(str(raw)).partition(".")
        key = canonical(head)
        if value is None:
            continue
        spelled.setdefault(key, []).append(head)
        if path:
            put(nested.setdefault(key, {}), path, value, key, f".{path}")
        else:
            put(values, key, value, key)
    keys = sorted({*values, *nested})
    asked = tuple(
        Asked(
            key,
            values.get(key),
            key in values,
            FrozenMap(nested.get(key)),
            tuple(dict.fromkeys(spelled[key])),
        )
        for key in keys
    )
    return asked, tuple(clashes)


def check_mapping(request: Any) -> None:
    """Raises `BadInput` for what is no mapping."""
    if not isinstance(request, Mapping):
        raise BadInput(
            f'a request is a mapping such as {{"feature_cache": "teacache"}}, got {type(request).__name__} '
            f"{show(request)[:60]!r}"
        )


def _plain_value(key: str, value: Any) -> Any:
    """The value, frozen. What has a shape or no bottom would go wrong far from here, where two values are compared."""
    problem = misfit(value, DEEPEST, MOST_BITS)
    if len(key) > LONGEST or problem:
        raise BadInput(f"{key[:LONGEST]}: {problem or f'no key has more than {LONGEST} characters'}")
    frozen = freeze(value)
    array = _array_in(frozen)
    if array is not None:
        what = f"{type(array).__name__} of shape {tuple(array.shape)}"
        raise BadInput(f"{key}: expects numbers, texts, lists or mappings, got {what}; pass .tolist() of it")
    return frozen


def _array_in(value: Any) -> Any:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | frozenset):
        return next((found for item in value if (found := _array_in(item)) is not None), None)
    return value if hasattr(value, "shape") else None


def differ(one: Any, other: Any) -> bool:
    """Whether two values of a request say different things: 0 is a number and not false, whatever Python holds."""
    return isinstance(one, bool) != isinstance(other, bool) or bool(one != other)


def distribution_of(key: str, value: str = "") -> str:
    """The distribution that brings a switch, or a selector's value, when no installed plugin does; "" if unknown."""
    known = data.table("known_switches")
    if not value:
        return str(known["switch"].get(key, ""))
    return str(known["value"].get(key, {}).get(folded(value), ""))
