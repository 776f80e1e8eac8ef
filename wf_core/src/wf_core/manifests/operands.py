"""What conditions compare: a fact, an option, or a sum of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs

from wf_core.values import show

if TYPE_CHECKING:
    from wf_core.facts import Facts

_KINDS = ("fact", "option", "sum")


class BadCondition(ValueError):
    """A condition that is not written in the closed form; the message says what is wrong with it."""


@attrs.frozen
class Ref:
    """A named fact or option, as subject or operand of a comparison."""

    kind: Literal["fact", "option"]
    name: str

    def __str__(self) -> str:
        return self.name

    def refs(self) -> Iterator[Ref]:
        """Itself."""
        yield self

    def missing(self, facts: Facts) -> tuple[str, ...]:
        """The name of the fact, where it is not known. An option is always known."""
        return (self.name,) if self.kind == "fact" and self.name not in facts else ()

    def find(self, facts: Facts, options: Mapping[str, Any]) -> tuple[bool, Any]:
        """Whether the value is known, and the value. An option is always known, ``None`` when not given."""
        if self.kind == "option":
            return True, options.get(self.name)
        return self.name in facts, facts.get(self.name)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"kind": self.kind, "name": self.name}


@attrs.frozen
class Sum:
    """The sum of facts, options and whole numbers. Like nothing where one of them is nothing, or no number."""

    parts: tuple[Ref | int, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts))

    def refs(self) -> Iterator[Ref]:
        """The facts and options that are added."""
        return (part for part in self.parts if isinstance(part, Ref))

    def missing(self, facts: Facts) -> tuple[str, ...]:
        """The names of the facts that are not known."""
        return tuple(name for ref in self.refs() for name in ref.missing(facts))

    def find(self, facts: Facts, options: Mapping[str, Any]) -> tuple[bool, Any]:
        """Whether all that is added is known, and the sum."""
        values = [part.find(facts, options)[1] if isinstance(part, Ref) else part for part in self.parts]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        try:
            return not self.missing(facts), sum(values) if numbers else None
        except OverflowError:  # a whole number that no float is near to
            return not self.missing(facts), None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"sum": [part.to_json() if isinstance(part, Ref) else part for part in self.parts]}


Operand = Ref | Sum


def read_operand(body: Mapping[str, Any]) -> Operand:
    """What a table names by ``fact``, ``option`` or ``sum``. Raises `BadCondition`."""
    kinds = [kind for kind in _KINDS if kind in body]
    if kinds == ["sum"]:
        return _read_sum(body["sum"])
    if len(kinds) != 1 or not isinstance(body[kinds[0]], str):
        raise BadCondition(
            'a condition compares exactly one fact or option, or one sum of them, e.g. fact = "model.head_dim"'
        )
    return Ref("fact" if kinds[0] == "fact" else "option", body[kinds[0]])


def _read_sum(items: Any) -> Sum:
    if not isinstance(items, list | tuple) or len(items) < 2:
        raise BadCondition(f"sum takes a list of two or more facts, options and numbers, got {show(items)}")
    found = Sum(tuple(_read_part(item) for item in items))
    if not any(found.refs()):
        raise BadCondition(f"sum adds numbers alone, {show(items)}: write the number that they make")
    return found


def _read_part(item: Any) -> Ref | int:
    if type(item) is int:
        return item
    part = read_operand(item) if isinstance(item, Mapping) and len(item) == 1 else None
    if not isinstance(part, Ref):
        raise BadCondition(
            f'sum adds facts, options and whole numbers, e.g. {{ option = "first" }}, got {show(item)}'
        )
    return part


def operand_from_json(data: Mapping[str, Any]) -> Operand:
    """The operand of `Ref.to_json` or `Sum.to_json`. Raises `BadCondition`, or what Python raises."""
    if "sum" in data:
        found = Sum(tuple(item if type(item) is int else _ref_from_json(item) for item in data["sum"]))
        if not any(found.refs()):
            raise BadCondition("a sum adds facts and options")
        return found
    return _ref_from_json(data)


def _ref_from_json(data: Mapping[str, Any]) -> Ref:
    if data["kind"] not in ("fact", "option") or not isinstance(data["name"], str):
        raise BadCondition("a reference names a fact or an option")
    return Ref(data["kind"], data["name"])
