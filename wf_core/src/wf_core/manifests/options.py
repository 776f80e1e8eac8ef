"""Options: a typed value below a switch, with range, default and doc, and the one converter for all of them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from wf_core.errors import BadInput
from wf_core.names import did_you_mean
from wf_core.values import EMPTY, FrozenMap, freeze, misfit, show

Number = int | float


class BadValue(BadInput):
    """A value that its option does not take. ``key`` is the request key, ``problem`` the rest of the line."""

    def __init__(self, key: str, message: str) -> None:
        self.key = key
        self.problem = message
        super().__init__(f"{key}: {message}")


class _Unfit(Exception):
    """Inside the converters: what was expected, and a hint that stands last in the line."""


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise _Unfit("expects true or false")


_LARGEST = 1 << 63
_DEEPEST = 32


def _to_int(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < _LARGEST:
            return value
        raise _Unfit("expects a whole number of at most 64 bits")
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value):
        return int(value)
    raise _Unfit("expects a whole number")


def _to_float(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise _Unfit("expects a finite number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Unfit("expects a finite number")
    try:
        number = float(value)
    except OverflowError:
        raise _Unfit("expects a finite number") from None
    if not math.isfinite(number):
        raise _Unfit("expects a finite number")
    return number


def _to_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return show(value)
    raise _Unfit("expects text")


_UNITS = {"": 1, "B": 1, **{f"{p}iB": 1 << 10 * (i + 1) for i, p in enumerate("KMGT")}}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}


def _to_bytes(value: Any) -> int:
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGTkmgt]?i?[Bb]?)", value.strip())
        units = {unit.lower(): size for unit, size in _UNITS.items()}
        if match and match[2].lower() in units:
            value = int(float(match[1]) * units[match[2].lower()])
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
        return value
    raise _Unfit('expects a number of bytes, such as 25769803776 or "24GiB"')


def _to_path(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and value.strip():
        return value
    raise _Unfit("expects a path")


def _to_mapping(value: Any) -> FrozenMap:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _Unfit("expects a mapping") from None
    fits = isinstance(value, Mapping) and not misfit(value, _DEEPEST, 4096)
    if fits and all(isinstance(key, str) for key in value):
        return FrozenMap(value)
    raise _Unfit("expects a mapping")


def _items(value: Any, one: Callable[[Any], Number], words: str) -> tuple[Number, ...]:
    if isinstance(value, str):
        value = [part for part in value.strip().strip("[]()").split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        raise _Unfit(f"expects a list of {words}")
    try:
        return tuple(one(item) for item in value)
    except _Unfit:
        raise _Unfit(f"expects a list of {words}") from None


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "bool": _to_bool,
    "int": _to_int,
    "float": _to_float,
    "str": _to_str,
    "bytes": _to_bytes,
    "path": _to_path,
    "mapping": _to_mapping,
    "ints": lambda value: _items(value, _to_int, "whole numbers"),
    "floats": lambda value: _items(value, _to_float, "finite numbers"),
    "bools": lambda value: _items(value, _to_bool, "true or false"),
}
TYPES = (*_CONVERTERS, "choice")
LISTS = ("ints", "floats", "bools")


@attrs.frozen
class DefaultWith:
    """The default of an option beside another feature that has ``effect``, ``unless`` one of these options is given."""

    effect: str
    value: Any
    unless: tuple[str, ...] = ()


@attrs.frozen
class OptionDecl:
    """What a manifest says of one option. ``min`` and ``max`` are inclusive, ``above`` is exclusive.

    ``spellings`` are other ways to write a choice. ``default_with`` are the defaults beside another feature with some
    effect. ``sets`` is a fact whose place the option's value takes for the whole plan, such as ``model.dtype``.
    """

    name: str
    type: str = attrs.field(validator=attrs.validators.in_(TYPES))
    doc: str = ""
    default: Any = None
    choices: tuple[Any, ...] = ()
    spellings: FrozenMap = EMPTY
    min: Number | None = None
    max: Number | None = None
    above: Number | None = None
    length: int | None = None
    default_with: tuple[DefaultWith, ...] = ()
    sets: str = ""

    def convert(self, value: Any, key: str) -> Any:
        """The value as this option's type, or `BadValue` naming ``key``. ``None`` means the default."""
        value = value if isinstance(value, Mapping) else freeze(value)
        if value is None:
            return freeze(self.default)
        try:
            converted = self._choose(value) if self.type == "choice" else _CONVERTERS[self.type](value)
        except _Unfit as unfit:
            expected, *hint = unfit.args
            raise BadValue(key, f"{expected}, got {show(value)}{''.join(hint)}") from None
        self._check_range(converted, key)
        return converted

    def default_beside(self, effects: frozenset[str], given: Collection[str] = ()) -> Any:
        """The default in a plan whose other features have these effects, where these options are given."""
        fitting = (d for d in self.default_with if d.effect in effects and not {*d.unless} & {*given})
        return next((default.value for default in fitting), self.default)

    def describe_range(self) -> str:
        """The legal values in words: ``0.0 < x <= 1.0``, ``packed | split``, ``2 numbers``; "" for any."""
        parts = []
        if self.choices:
            parts.append(" | ".join(map(self._with_spellings, self.choices)))
        low = (
            f"{self.above} < "
            if self.above is not None
            else f"{self.min} <= "
            if self.min is not None
            else ""
        )
        high = f" <= {self.max}" if self.max is not None else ""
        if low or high:
            parts.append(f"{low}x{high}")
        if self.length is not None:
            parts.append(f"{self.length} numbers")
        return ", ".join(parts)

    def _with_spellings(self, choice: Any) -> str:
        also = ", ".join(spelling for spelling, other in self.spellings.items() if other == choice)
        return f"{show(choice)} ({also})" if also else show(choice)

    def _choose(self, value: Any) -> Any:
        for choice in self.choices:
            if type(choice) is type(value) and choice == value:
                return choice
        for choice in self.choices:
            if not isinstance(value, bool) and show(choice).lower() == str(value).strip().lower():
                return choice
        written = str(value).strip().lower()
        for spelling, choice in self.spellings.items():
            if not isinstance(value, bool) and spelling.lower() == written:
                return choice
        names = [show(choice) for choice in self.choices]
        hint = did_you_mean(str(value), (*names, *self.spellings))
        raise _Unfit(f"expects one of {', '.join(names)}", hint)

    def _check_range(self, value: Any, key: str) -> None:
        if self.length is not None and len(value) != self.length:
            raise BadValue(key, f"expects {self.length} numbers, got {len(value)}")
        if self.type not in ("int", "float", "ints", "floats"):
            return
        for number in value if isinstance(value, tuple) else (value,):
            below = self.min is not None and number < self.min
            above = self.max is not None and number > self.max
            if below or above or (self.above is not None and number <= self.above):
                raise BadValue(key, f"{show(number)} is out of range, expects {self.describe_range()}")
