"""Reading a TOML table key by key, so that every mistake becomes one line that says where and what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from wf_core.errors import BadInput
from wf_core.names import did_you_mean
from wf_core.values import freeze, show

_MISSING = object()


class ManifestError(BadInput):
    """A manifest that cannot be used. ``path`` is the file, ``where`` the table in it."""

    def __init__(self, path: Path, where: str, message: str) -> None:
        self.path = path
        self.where = where
        self.problem = message
        super().__init__(f"{path}: {where}: {message}" if where else f"{path}: {message}")


class Table:
    """One TOML table being read. Each getter takes its key out; ``done`` complains about what is left."""

    def __init__(self, data: Mapping[str, Any], path: Path, where: str = "") -> None:
        self.path = path
        self.where = where
        self._data = data
        self._seen: list[str] = []

    def fail(self, message: str) -> NoReturn:
        """Raises `ManifestError` at this table."""
        raise ManifestError(self.path, self.where, message)

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as it stands."""
        self._seen.append(key)
        return self._data.get(key, default)

    def text(self, key: str, default: Any = _MISSING) -> str:
        """Text; required and not empty when there is no default."""
        value = self._typed(key, str, "text", default)
        if default is _MISSING and not value.strip():
            self.fail(f"{key} must not be empty")
        return str(value)

    def whole(self, key: str, default: Any = _MISSING) -> int:
        """A whole number."""
        return int(self._typed(key, int, "a whole number", default))

    def whole_or_none(self, key: str, least: int) -> int | None:
        """A whole number not below ``least``, None where the key is absent."""
        value = self._typed(key, int, "a whole number", None)
        if value is not None and value < least:
            self.fail(f"{key} must be {least} or more, got {value}")
        return None if value is None else int(value)

    def number_or_none(self, key: str) -> int | float | None:
        """A finite number, None where the key is absent."""
        value = self.raw(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value)):
            self.fail(f"{key} must be a finite number, got {show(value)}")
        return value if is_number else None

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        return bool(self._typed(key, bool, "true or false", default))

    def items(self, key: str) -> tuple[Any, ...]:
        """A list of anything, frozen; empty when absent."""
        return tuple(freeze(self._typed(key, list, "a list", ())))

    def texts(self, key: str, default: Any = ()) -> tuple[str, ...]:
        """A list of texts."""
        value = self._typed(key, list, "a list of texts", default)
        if not all(isinstance(item, str) for item in value):
            self.fail(f"{key} must be a list of texts, got {show(value)}")
        return tuple(value)

    def one_of(self, key: str, choices: tuple[str, ...], default: Any = _MISSING) -> str:
        """Text from a closed list."""
        value = self.text(key, default)
        if value not in choices and value != default:
            self.fail(f"unknown {key} {value!r}{did_you_mean(value, choices)} ({', '.join(choices)})")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A sub-table as it stands; empty when absent."""
        value: Mapping[str, Any] = self._typed(key, dict, "a table", {})
        return value

    def tables(self, key: str, label: str = "") -> list[Table]:
        """The rows of ``[[key]]``, each knowing its own name for messages."""
        rows = self._typed(key, list, f"an array of tables, [[{key}]]", [])
        found = []
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                self.fail(f"{key} must be an array of tables, [[{key}]]")
            name = row.get("name")
            where = (
                f"{label or key} {name!r}" if isinstance(name, str) else f"{label or key} number {index + 1}"
            )
            found.append(Table(row, self.path, f"{self.where}, {where}" if self.where else where))
        return found

    def done(self) -> None:
        """Refuses keys that nothing asked for, with the nearest known one."""
        left = sorted(set(self._data) - set(self._seen))
        if left:
            self.fail(f"unknown key {left[0]!r}{did_you_mean(left[0], self._seen)}")

    def _typed(self, key: str, kind: type, words: str, default: Any) -> Any:
        value = self.raw(key, default)
        if value is _MISSING:
            self.fail(f"{key} is missing")
        if value is default:
            return value
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.fail(f"{key} must be {words}, got {show(value)}")
        return value
