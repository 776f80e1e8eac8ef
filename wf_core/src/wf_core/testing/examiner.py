"""The checks of one plugin in a process of their own: ``python -m wf_core.testing.examiner PLUGIN FD``.

Each result is one JSON line on the file descriptor, and a last line says that nothing is missing: a plugin that ends
the process has not passed what was not said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from wf_core.plugins.discovery import PluginRecord, discover

END = {"end": True}
STDERR = 2
"""What a plugin prints is no answer of the command."""


def examined(plugin: str) -> Iterator[dict[str, Any]]:
    """The results for an installed plugin, one by one as they are known, as `Result.to_json` gives them."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "wf_core.testing.examiner", plugin, str(writing)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        command, pass_fds=(writing,), stdin=subprocess.DEVNULL, stdout=STDERR, env=environ
    )
    os.close(writing)
    whole = False
    try:
        with os.fdopen(reading) as lines:
            for line in lines:
                found = json.loads(line)
                whole = found == END
                if not whole:
                    yield found
    finally:
        code = process.wait() if whole else _ended(process)
    if not whole:
        yield _cut_off(code)


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _cut_off(code: int) -> dict[str, Any]:
    message = f"the process that ran the checks ended with exit code {code} before they were done."
    says = "The checks come to their end."
    return {
        "check": "the_checks_come_to_their_end",
        "says": says,
        "subject": "",
        "state": "failed",
        "message": message,
        "seconds": 0.0,
    }


def usable_families(plugins: tuple[PluginRecord, ...]) -> list[PluginRecord]:
    """The model families that are installed and available."""
    return [record for record in plugins if record.state == "available" and record.kind == "model-family"]


def main() -> None:
    """The side of the process that runs the checks."""
    from wf_core.testing.examination import examine, families_beside

    plugin, descriptor = sys.argv[1], int(sys.argv[2])
    discovery = discover()
    record = discovery.plugin(plugin)
    assert record is not None, plugin
    with os.fdopen(descriptor, "w", buffering=1) as file:
        for result in examine(record, families_beside(usable_families(discovery.plugins))):
            file.write(json.dumps(result.to_json()) + "\n")
        file.write(json.dumps(END) + "\n")


if __name__ == "__main__":
    main()
