"""Conditions: comparisons over facts and options with three answers, read from a manifest as data.

The set of operators is closed; there is no expression language. A leaf compares one fact or option, or a sum of them,
with a literal, another fact, option or sum, or the keys of a table; ``any_of`` and ``all_of`` join them.
An option that was not given compares like "nothing": only ``present``, ``eq`` and ``ne`` can be met by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs

from wf_core.manifests.operands import BadCondition, Operand, Ref, Sum, operand_from_json, read_operand
from wf_core.values import clipped, freeze, show, thaw

if TYPE_CHECKING:
    from wf_core.facts import Facts

__all__ = [
    "BadCondition",
    "Condition",
    "JOINS",
    "NO_TABLES",
    "OPERATORS",
    "Ref",
    "State",
    "Sum",
    "Tables",
    "Verdict",
    "check_placeholders",
]

State = Literal["met", "unmet", "unknown"]
Tables = Mapping[str, frozenset[Any]]
NO_TABLES: Tables = {}

OPERATORS = ("eq", "ne", "in", "lt", "le", "gt", "ge", "divisible_by", "present", "contains_all", "in_table")
JOINS = ("any_of", "all_of")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@attrs.frozen
class Verdict:
    """The answer of a condition: ``reason`` is the manifest's sentence, ``missing`` the facts not known yet."""

    state: State
    reason: str = ""
    missing: tuple[str, ...] = ()


@attrs.frozen
class Condition:
    """One condition: a leaf (``subject`` and ``tests``) or a join (``join`` and ``parts``).

    ``involves`` are names that a refusal gives beside those of the feature that has the condition.
    """

    subject: Operand | None = None
    tests: tuple[tuple[str, Any], ...] = ()
    join: str = ""
    parts: tuple[Condition, ...] = ()
    reason: str = ""
    code: str = ""
    involves: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: Any, *, top: bool = True) -> Condition:
        """Reads the TOML form. A condition at the top must carry a ``reason``; raises `BadCondition`."""
        if not isinstance(data, Mapping):
            raise BadCondition(f"a condition is a table, got {show(data)}")
        reason, code = data.get("reason", ""), data.get("code", "")
        if top and not (isinstance(reason, str) and reason.strip()):
            raise BadCondition(
                "a condition needs a reason: one sentence that says why the feature cannot run"
            )
        if not isinstance(reason, str) or not isinstance(code, str):
            raise BadCondition("reason and code are texts")
        check_placeholders(reason)
        body = {key: value for key, value in data.items() if key not in ("reason", "code")}
        join = next((name for name in JOINS if name in body), "")
        if join:
            return cls(join=join, parts=_parts(join, body), reason=reason, code=code)
        return cls(subject=read_operand(body), tests=_tests(body), reason=reason, code=code)

    def judge(self, facts: Facts, options: Mapping[str, Any], tables: Tables = NO_TABLES) -> Verdict:
        """Met, unmet with the reason, or unknown with the names of the facts that are missing."""
        state, missing = self._state(facts, options, tables)
        if state == "met":
            return Verdict("met")
        return Verdict(state, self.sentence(facts, options), missing if state == "unknown" else ())

    def sentence(self, facts: Facts, options: Mapping[str, Any]) -> str:
        """The reason with what was compared in the place of ``{value}``."""
        subject = self._compared()
        value = subject.find(facts, options)[1]
        nothing = "none" if isinstance(subject, Ref) and subject.kind == "fact" else "not given"
        return self.reason.replace("{value}", nothing if value is None else clipped(show(value), 400))

    def bind(self, tables: Tables) -> Condition:
        """The same condition with the keys of its tables inside, so that it can be judged without a manifest."""
        tests = tuple(
            (name, tables[operand] if name == "in_table" and isinstance(operand, str) else operand)
            for name, operand in self.tests
        )
        return attrs.evolve(self, tests=tests, parts=tuple(part.bind(tables) for part in self.parts))

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same condition."""
        return {
            **({"subject": self.subject.to_json()} if self.subject is not None else {}),
            **(
                {"tests": [[name, _operand_to_json(operand)] for name, operand in self.tests]}
                if self.tests
                else {}
            ),
            **({"join": self.join, "parts": [part.to_json() for part in self.parts]} if self.join else {}),
            **({"reason": self.reason} if self.reason else {}),
            **({"code": self.code} if self.code else {}),
            **({"involves": list(self.involves)} if self.involves else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Condition:
        """The condition of `to_json`. Raises `BadCondition`, or what Python raises, for anything else."""
        found = cls(
            subject=operand_from_json(data["subject"]) if "subject" in data else None,
            tests=tuple((name, _operand_from_json(operand)) for name, operand in data.get("tests", ())),
            join=data.get("join", ""),
            parts=tuple(cls.from_json(part) for part in data.get("parts", ())),
            reason=data.get("reason", ""),
            code=data.get("code", ""),
            involves=tuple(data.get("involves", ())),
        )
        whole = bool(found.parts) if found.join in JOINS else found.subject is not None and bool(found.tests)
        if found.join not in ("", *JOINS) or not whole or {name for name, _ in found.tests} - {*OPERATORS}:
            raise BadCondition("a condition compares one fact or option, or joins others")
        if not all(isinstance(text, str) for text in (found.reason, found.code, *found.involves)):
            raise BadCondition("reason, code and involves are texts")
        return found

    def refs(self) -> Iterator[Ref]:
        """Every fact and option that this condition looks at."""
        yield from (ref for operand in self._operands() for ref in operand.refs())
        for part in self.parts:
            yield from part.refs()

    def sums(self) -> Iterator[Sum]:
        """Every sum that this condition makes."""
        yield from (operand for operand in self._operands() if isinstance(operand, Sum))
        for part in self.parts:
            yield from part.sums()

    def _operands(self) -> Iterator[Operand]:
        if self.subject is not None:
            yield self.subject
        yield from (operand for _, operand in self.tests if isinstance(operand, Ref | Sum))

    def table_names(self) -> Iterator[str]:
        """Every table of the manifest that this condition looks at."""
        yield from (
            operand for name, operand in self.tests if name == "in_table" and isinstance(operand, str)
        )
        for part in self.parts:
            yield from part.table_names()

    def _state(
        self, facts: Facts, options: Mapping[str, Any], tables: Tables
    ) -> tuple[State, tuple[str, ...]]:
        if self.join:
            return self._joined(facts, options, tables)
        assert self.subject is not None
        known, value = self.subject.find(facts, options)
        if not known:
            return "unknown", self.subject.missing(facts)
        missing: list[str] = []
        for name, operand in self.tests:
            there, other = operand.find(facts, options) if isinstance(operand, Ref | Sum) else (True, operand)
            if not there:
                missing += operand.missing(facts)
            elif not _compare(name, value, other, tables):
                return "unmet", ()
        return ("unknown", tuple(missing)) if missing else ("met", ())

    def _joined(
        self, facts: Facts, options: Mapping[str, Any], tables: Tables
    ) -> tuple[State, tuple[str, ...]]:
        answers = [part._state(facts, options, tables) for part in self.parts]
        decisive: State = "met" if self.join == "any_of" else "unmet"
        if any(state == decisive for state, _ in answers):
            return decisive, ()
        missing = tuple(
            dict.fromkeys(name for state, names in answers if state == "unknown" for name in names)
        )
        if missing:
            return "unknown", missing
        return ("unmet", ()) if self.join == "any_of" else ("met", ())

    def _compared(self) -> Operand:
        """What the condition compares first."""
        return self.parts[0]._compared() if self.subject is None else self.subject


def check_placeholders(reason: str, filled: tuple[str, ...] = ("value",)) -> None:
    """Raises `BadCondition` for a placeholder in a reason that nobody would fill."""
    unknown = sorted({*_PLACEHOLDER.findall(reason)} - {*filled})
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in filled)
        raise BadCondition(
            f"the reason has a placeholder {{{unknown[0]}}} that nobody fills; there is {known}"
        )


def _operand_to_json(operand: Any) -> Any:
    """References, sums and sets of table keys say what they are; everything else stands as it is."""
    if isinstance(operand, Sum):
        return operand.to_json()
    if isinstance(operand, Ref):
        return {"ref": operand.to_json()}
    return {"keys": thaw(operand)} if isinstance(operand, frozenset) else {"value": thaw(operand)}


def _operand_from_json(data: Mapping[str, Any]) -> Any:
    if "ref" in data or "sum" in data:
        return operand_from_json(data.get("ref", data))
    return frozenset(freeze(data["keys"])) if "keys" in data else freeze(data["value"])


def _parts(join: str, body: Mapping[str, Any]) -> tuple[Condition, ...]:
    extra = sorted(set(body) - {join})
    if extra:
        raise BadCondition(f"{join} stands alone, but {', '.join(extra)} stands beside it")
    if not isinstance(body[join], list | tuple) or not body[join]:
        raise BadCondition(f"{join} takes a list of conditions")
    return tuple(Condition.parse(part, top=False) for part in body[join])


def _tests(body: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    names = [key for key in body if key not in ("fact", "option", "sum")]
    unknown = sorted(set(names) - set(OPERATORS))
    if unknown:
        raise BadCondition(
            f"unknown operator {unknown[0]!r}; the operators are {', '.join((*OPERATORS, *JOINS))}"
        )
    if not names:
        raise BadCondition(f"a condition needs an operator: one of {', '.join((*OPERATORS, *JOINS))}")
    return tuple((name, _operand(name, body[name])) for name in names)


def _operand(name: str, value: Any) -> Any:
    if isinstance(value, Mapping) and name not in ("present", "in_table"):
        if len(value) != 1:
            raise BadCondition(f"{name} compares with one fact, option or sum, got {show(value)}")
        return read_operand(value)
    checks = {
        "present": (isinstance(value, bool), "true or false"),
        "in_table": (isinstance(value, str), "the name of a table"),
        "in": (isinstance(value, list | tuple), "a list"),
        "contains_all": (isinstance(value, list | tuple), "a list"),
        "divisible_by": (
            isinstance(value, int) and not isinstance(value, bool) and value > 0,
            "a number above 0",
        ),
    }
    fits, words = checks.get(name, (True, ""))
    if not fits:
        raise BadCondition(f"{name} takes {words}, got {show(value)}")
    return freeze(value)


def _compare(name: str, value: Any, other: Any, tables: Tables) -> bool:
    if name == "present":
        return bool((value is not None) == other)
    if name == "eq":
        return bool(value == other)
    if name == "ne":
        return bool(value != other)
    if value is None or other is None:
        return False
    if name == "in":
        return isinstance(other, tuple | frozenset) and value in other
    if name == "in_table":
        keys = tables.get(other) if isinstance(other, str) else other
        return isinstance(keys, frozenset) and _fold(value) in keys
    if name == "contains_all":
        return isinstance(value, tuple) and isinstance(other, tuple) and all(item in value for item in other)
    if name == "divisible_by":
        return isinstance(value, int) and isinstance(other, int) and other > 0 and value % other == 0
    return _ordered(name, value, other)


def _fold(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _ordered(name: str, value: Any, other: Any) -> bool:
    """Lists are compared item by item, and every item must hold; with one number, each item against it."""
    if isinstance(value, tuple):
        others = other if isinstance(other, tuple) else (other,) * len(value)
        pairs = zip(value, others, strict=False)
        return len(value) == len(others) and all(_ordered(name, one, two) for one, two in pairs)
    if isinstance(value, str) and isinstance(other, str):
        value, other = _versions(value, other)
    try:
        result = {
            "lt": lambda: value < other,
            "le": lambda: value <= other,
            "gt": lambda: value > other,
            "ge": lambda: value >= other,
        }[name]()
    except TypeError:
        return False
    return bool(result)


def _versions(value: str, other: str) -> tuple[Any, Any]:
    """Two texts in order are versions (``package.flash-attn``, ``driver``): 2.10 is above 2.9."""
    from packaging.version import Version

    try:
        return Version(value), Version(other)
    except ValueError:  # no version, or one with a number of thousands of digits
        return value, other
