"""What the benchmarks share: medians, a small table with a target column, and the same numbers as JSON."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import attrs


@attrs.frozen
class Row:
    """One measured number. ``target`` is the most that it should be; None for a peer, which is only compared."""

    what: str
    value: float
    unit: str
    target: float | None = None

    def verdict(self) -> str:
        if self.target is None:
            return "peer"
        return f"<= {self.target:g}: " + ("met" if self.value <= self.target else "MISSED")


def seconds(call: Callable[[], object], repeat: int) -> float:
    """The median time of one call, after one call that is not counted."""
    call()
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def side_by_side(
    calls: Sequence[Callable[[], object]],
    repeat: int,
    pick: Callable[[Sequence[float]], float] = statistics.median,
) -> list[float]:
    """Seconds of each call, measured in turns so that a slow moment of the machine hits all alike.

    The median of ``repeat``; ``pick=min`` where a small difference counts, for then the quiet moments decide.
    """
    for call in calls:
        call()
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [pick(times) for times in taken]


def show(title: str, rows: Sequence[Row], note: str = "") -> None:
    """Print the table; with ``--json FILE`` on the command line write it too."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    arguments, _ = parser.parse_known_args()  # a bench may have options of its own
    print(f"\n{title}")
    width = max(len(row.what) for row in rows)
    for row in rows:
        print(f"  {row.what:<{width}}  {row.value:>10.3f} {row.unit:<4} {row.verdict()}")
    if note:
        print(f"  {note}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(_record(title, rows, note), indent=2) + "\n")


def _record(title: str, rows: Sequence[Row], note: str) -> dict[str, object]:
    return {
        "schema": 1,
        "title": title,
        "rows": [attrs.asdict(row) for row in rows],
        "note": note,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": {name: metadata.version(name) for name in ("torch", "diffusers", "wf-core")},
        "command": " ".join(Path(part).name for part in sys.argv[:1]),
    }
