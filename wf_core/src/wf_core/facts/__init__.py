"""Facts: statements about model, device, process and run, each with where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from wf_core.values import freeze, thaw

__all__ = ["Fact", "Facts"]


@attrs.frozen
class Fact:
    """One value and its source, such as ``transformer/config.json`` or ``NVML``."""

    value: Any = attrs.field(converter=freeze)
    source: str


class Facts(Mapping[str, Fact]):
    """A read-only mapping of names such as ``model.heads`` to facts. A name that is absent is not known (yet);
    a fact whose value is ``None`` is known to be nothing.
    """

    __slots__ = ("_facts",)

    def __init__(self, facts: Mapping[str, Fact] | None = None) -> None:
        self._facts: dict[str, Fact] = dict(sorted((facts or {}).items()))

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> Facts:
        """Facts from plain values that share one source."""
        return cls({name: Fact(value, source) for name, value in values.items()})

    def __getitem__(self, name: str) -> Fact:
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, name: object) -> bool:
        return name in self._facts

    def __hash__(self) -> int:
        return hash(tuple(self._facts.items()))

    def __repr__(self) -> str:
        return f"Facts({ {name: fact.value for name, fact in self._facts.items()} })"

    def get(self, name: str, default: Any = None) -> Any:
        """The value (not the `Fact`) of a name, or ``default`` when it is not known."""
        fact = self._facts.get(name)
        return default if fact is None else fact.value

    def source(self, name: str) -> str:
        """Where a fact came from, "" when it is not known."""
        return self._facts[name].source if name in self._facts else ""

    def with_(self, values: Mapping[str, Any] | None = None, *, source: str = "", **named: Any) -> Facts:
        """A copy with more facts; later ones win. Takes plain values, `Fact` values, or another `Facts`.

        Keyword names spell dots as two underscores: ``facts.with_(model__heads=12, source="test")``.
        """
        added = {**(values or {}), **{name.replace("__", "."): value for name, value in named.items()}}
        new = {name: item if isinstance(item, Fact) else Fact(item, source) for name, item in added.items()}
        return Facts({**self._facts, **new})

    def merged(self, other: Facts) -> Facts:
        """Both sets of facts; those of ``other`` win."""
        return Facts({**self._facts, **other._facts})

    def values_of(self, prefix: str) -> dict[str, Any]:
        """Plain values of every fact below a prefix, without it: ``values_of("run.")["height"]``."""
        return {
            name.removeprefix(prefix): fact.value
            for name, fact in self._facts.items()
            if name.startswith(prefix)
        }

    def to_json(self) -> dict[str, Any]:
        """``{name: {"value": ..., "source": ...}}`` in order of names."""
        return {
            name: {"value": thaw(fact.value), "source": fact.source} for name, fact in self._facts.items()
        }
