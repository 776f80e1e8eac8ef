"""Damage to data that is right: values that nobody expects, in every place; and a limit of time for each example."""

from __future__ import annotations

import copy
import json
import math
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from wf_core.facts import Facts

SECONDS = 30.0
SEEDS = st.integers(0, 2**32)
FACTS = Facts.of(
    {"model.family": "wan", "model.id": "x", "model.here": True, "device.type": "cuda", "device.sm": 90},
    "test",
)
LONGEST_LINE = 5000


def examples(count: int) -> Any:
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )  # fmt: skip


def deep(levels: int, value: Any = 1) -> Any:
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 2**31, 2**63, -(2**63), 10**30, 10**400, 10**4200, 1e308,
    math.nan, math.inf, -math.inf, "", " ", "f", "0", "nan", "x" * 150_000, "x " * 50_000, "1" * 5000,
    "\ud800", "a\0b", "\x1b[2J", "{value}" * 5000, "{slot}", "../../../etc/passwd", "/dev/zero", "os:system",
    "lossy", "exact", "stack", "compiles", "occupies-ranks(0)", "occupies-ranks(999999999)", "unavailable: x",
    [], {}, [[]], [None], ["x"], [1, 2, 3], [[1, 2], [3, "a"]], {"": 1}, {"a": {}}, {"value": 1}, {"effect": "x"},
    {"order": 1, "when": {"fact": "a", "eq": 1}}, {"fact": "device.sm", "ge": {"option": "x"}},
    {"fact": "a", "in_table": "t"}, {"any_of": [{"fact": "a", "present": False}]}, deep(30), deep(200),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside plain data."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutated(value: Any, seed: int, values: Sequence[Any] = VALUES) -> Any:
    """A copy with one to three places taken out, set to something else, doubled, or exchanged."""
    chance = random.Random(seed)
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        paths = list(places(value))
        if not paths:
            break
        *outer, last = chance.choice(paths)
        holder = value
        for key in outer:
            holder = holder[key]
        match chance.randrange(6):
            case 0:
                del holder[last]
            case 1:
                other: Any = value
                for key in chance.choice(paths):
                    other = other[key]
                holder[last] = copy.deepcopy(other)
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[last]))
            case 3 if isinstance(holder, dict):
                holder[chance.choice(["", "x", "\ud800", "x" * 300, "name", last + "x"])] = holder.pop(last)
            case _:
                holder[last] = copy.deepcopy(chance.choice(values))
    return value


def toml(value: Any) -> str:
    """A value as inline TOML; what TOML does not have becomes text."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    return str(value) if isinstance(value, int) else _key(str(value))


def toml_document(data: dict[str, Any]) -> str:
    return "\n".join(f"{_key(key)} = {toml(value)}" for key, value in data.items())


def _key(text: str) -> str:
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007F")


class TooLong(BaseException):
    """An example ran out of time. No handler of ``Exception`` takes it for something else."""


@contextmanager
def within(seconds: float = SECONDS) -> Iterator[None]:
    """Raises `TooLong` after so many seconds, also out of a system call that waits."""

    def stop(*_: Any) -> None:
        raise TooLong(f"longer than {seconds} s")

    handler = signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)


def said(error: BaseException) -> str:
    """The message of a refusal, which is one that can be read."""
    text = str(error)
    assert text
    assert len(text) <= LONGEST_LINE, f"{len(text)} characters: {text[:200]}"
    return text


def wf(*arguments: object) -> tuple[int, str, str]:
    """The command line in this process: exit code, stdout, stderr. Refused in one line, and never a fault."""
    from wf_core.cli import main

    out, err, code = StringIO(), StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), within():
        try:
            main(args=list(map(str, arguments)))
        except SystemExit as ended:
            code = int(ended.code or 0)
    told = err.getvalue()
    assert code in (0, 2), told[:2000]
    if code == 2:
        assert told.startswith("wf: ") and told.count("\n") == 1, told[:2000]
        assert len(told) <= LONGEST_LINE
    return code, out.getvalue(), told
