"""Checks of options: their bounds, and values that are none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from wf_core.facts import Facts
from wf_core.manifests.options import BadValue, OptionDecl
from wf_core.testing.cases import FeatureCase
from wf_core.testing.checks.registry import Nonconformity, NotApplicable, check

NUMBERS = ("int", "float", "ints", "floats")
NONSENSE: dict[str, tuple[Any, ...]] = {
    "bool": ("perhaps", 3),
    "int": ("many", 1.5, True, float("nan")),
    "float": ("many", True, float("nan"), float("inf")),
    "str": ([1], {"a": 1}),
    "path": ("", 3),
    "mapping": ("no mapping", [1]),
    "bytes": ("many", -1, True),
    "ints": ("a,b", [1.5], 3.5),
    "floats": ("a,b", [float("nan")], "x"),
    "bools": ("a,b", ["perhaps"]),
    "choice": ("none of these", [1]),
}


@check("feature", needs_code=False)
def every_option_is_checked_at_its_bounds(case: FeatureCase) -> None:
    """Each option takes the values at its bounds, and refuses those just outside and those of another type."""
    if not case.feature.options:
        raise NotApplicable("it has no options")
    for option in case.feature.options:
        _check_option(case.feature.name, option)
    _check_defaults(case)


def _check_defaults(case: FeatureCase) -> None:
    """What the feature does when nothing is said must not be what its own conditions refuse."""
    defaults = {option.name: option.default for option in case.feature.options}
    for condition in case.feature.conditions:
        refs = tuple(condition.refs())
        decided = all(ref.kind == "option" and defaults.get(ref.name) is not None for ref in refs)
        if decided and condition.judge(Facts(), defaults).state == "unmet":
            given = ", ".join(f"{ref.name} = {defaults[ref.name]!r}" for ref in refs)
            raise Nonconformity(
                f"a condition of {case.feature.name!r} refuses its own default ({given}): {condition.reason} Change "
                "the default, or the condition."
            )


def _check_option(feature: str, option: OptionDecl) -> None:
    where = f"option {option.name!r} of {feature!r}"
    for value in _inside(option):
        try:
            option.convert(value, option.name)
        except BadValue as error:
            raise Nonconformity(f"{where} refuses {value!r}, which is inside its range: {error}.") from None
    for value in (*_outside(option), *NONSENSE[option.type]):
        if _accepts(option, value):
            raise Nonconformity(f"{where} accepts {value!r}: narrow its type, choices, min, max or length.")
    if option.type in ("int", "float") and option.min is None and option.above is None and option.max is None:
        raise Nonconformity(
            f"{where} takes any number: say min, above or max, so that a value without meaning is refused before a run."
        )


def _accepts(option: OptionDecl, value: Any) -> bool:
    try:
        option.convert(value, option.name)
    except BadValue:
        return False
    return True


def _inside(option: OptionDecl) -> Iterator[Any]:
    if option.default is not None:
        yield option.default
    yield from option.choices
    if option.type in ("int", "float"):
        yield from (bound for bound in (option.min, option.max) if bound is not None)


def _outside(option: OptionDecl) -> Iterator[Any]:
    if option.type not in NUMBERS:
        return
    step = 1 if option.type in ("int", "ints") else 0
    found: list[float] = []
    if option.min is not None:
        found.append(option.min - 1 if step else math.nextafter(option.min, -math.inf))
    if option.above is not None:
        found.append(option.above)
    if option.max is not None:
        found.append(option.max + 1 if step else math.nextafter(option.max, math.inf))
    for number in found:
        yield [number] * (option.length or 1) if option.type in ("ints", "floats") else number
    if option.length is not None and option.default is not None:
        yield [*option.default, option.default[0]]
