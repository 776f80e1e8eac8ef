"""Wall time of ``wf list-plugins``, beside a bare scan of the installed entry points and an import of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from table import Row, show, side_by_side

REPEAT = 10
SCAN = "from importlib.metadata import entry_points; print(len(entry_points()))"


def main() -> None:
    wf = str(Path(sys.executable).with_name("wf"))
    commands = [
        [wf, "list-plugins"],
        [wf, "list-plugins", "--json"],
        [sys.executable, "-c", SCAN],
        [sys.executable, "-c", "pass"],
        [sys.executable, "-c", "import torch"],
    ]
    listing, as_json, scan, start, torch = side_by_side([lambda c=c: _run(c) for c in commands], REPEAT)
    rows = [
        Row("wf list-plugins", listing, "s", 0.25),
        Row("wf list-plugins --json", as_json, "s", 0.25),
        Row("peer: importlib.metadata.entry_points()", scan, "s"),
        Row("peer: an empty Python", start, "s"),
        Row("peer: import torch", torch, "s"),
    ]
    show("Command line, wall time", rows, f"median of {REPEAT}, in turns")


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
