"""Effects: words for what a feature does to a run, with an optional seam and numbers.

Written ``skips-blocks@stack`` or ``occupies-ranks(2)``. In a manifest a number may be the name of an integer
option, ``occupies-ranks(degree)``; ``bind`` puts the option's value in its place when a request is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs

from wf_core import data
from wf_core.manifests.vocabulary import SEAMS
from wf_core.names import did_you_mean

if TYPE_CHECKING:
    from wf_core.manifests.conditions import Condition

_WORD = "[a-z][a-z0-9-]*"
_FORM = re.compile(rf"(?P<name>{_WORD})(?:\((?P<numbers>[^()]*)\))?(?:@(?P<seam>[a-z_.]+))?")


class BadEffect(ValueError):
    """An effect that is not in the vocabulary or not written in its form."""


@attrs.frozen
class EffectWord:
    """A word of the vocabulary: its name, how many numbers it carries, and what it means.

    A ``derived`` word is given by the host from what a feature says elsewhere, such as its tier.
    """

    name: str
    doc: str = ""
    numbers: int = 0
    derived: bool = False


@attrs.frozen
class Effect:
    """One effect of one feature. ``numbers`` holds integers, or option names until `bind` is called."""

    name: str
    seam: str = ""
    numbers: tuple[int | str, ...] = ()

    @classmethod
    def parse(cls, text: str, words: Mapping[str, EffectWord] | None = None) -> Effect:
        """Reads ``name``, ``name(2)``, ``name@seam``, ``name(2)@seam``; raises `BadEffect`."""
        words = vocabulary() if words is None else words
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise BadEffect(f"effect {text!r} is not written as name, name(2) or name@seam")
        name, seam = match["name"], match["seam"] or ""
        if name not in words:
            hint = did_you_mean(name, words, "; introduce it in [[effect]]")
            raise BadEffect(f"unknown effect {name!r}{hint}")
        if words[name].derived:
            raise BadEffect(f"effect {name!r} is given by the host, from the tier and the effects declared")
        if seam and seam not in SEAMS:
            raise BadEffect(f"effect {text!r} names an unknown seam{did_you_mean(seam, SEAMS)}")
        numbers = tuple(_number(part.strip()) for part in (match["numbers"] or "").split(",") if part.strip())
        if len(numbers) != words[name].numbers:
            raise BadEffect(f"effect {name!r} carries {words[name].numbers} numbers, got {text!r}")
        return cls(name, seam, numbers)

    def bind(self, options: Mapping[str, Any]) -> Effect:
        """The same effect with option names replaced by their values (1 where an option is not given)."""
        numbers = tuple(_value(options.get(n)) if isinstance(n, str) else n for n in self.numbers)
        return attrs.evolve(self, numbers=numbers)

    def __str__(self) -> str:
        numbers = f"({', '.join(str(number) for number in self.numbers)})" if self.numbers else ""
        return self.name + numbers + (f"@{self.seam}" if self.seam else "")


def effect_name(text: str) -> str:
    """The name in an effect that is written out: ``occupies-ranks`` of ``occupies-ranks(2)@stack``."""
    match = _FORM.fullmatch(text)
    return match["name"] if match is not None else text


@attrs.frozen
class EffectRule:
    """An effect that a feature has: always, or only ``when`` a condition over options and facts is met."""

    effect: Effect
    when: Condition | None = None


@cache
def vocabulary() -> dict[str, EffectWord]:
    """The core's own words by name."""
    return {row["name"]: EffectWord(**row) for row in data.table("effects")["effect"]}


def is_word(name: str) -> bool:
    """Whether a name can stand in an effect: small letters, digits and hyphens."""
    return re.fullmatch(_WORD, name) is not None


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text


def _value(value: Any) -> int:
    return value if isinstance(value, int) else 1
