"""``python -m wf_core.cli.probe NAME``: import one plugin in this process and say how it went, as one JSON line."""

from __future__ import annotations

import sys

from wf_core.cli.answer import Answer, answering
from wf_core.errors import PluginFault
from wf_core.plugins.discovery import discover
from wf_core.plugins.loading import load_plugin


def main(name: str) -> None:
    """The one line of stdout is the answer, whatever the plugin prints."""
    with answering() as answer:
        _probe(name, answer)


def _probe(name: str, answer: Answer) -> None:
    record = discover().plugin(name)
    if record is None:
        state, reason = "broken", "not found"
    else:
        try:
            load_plugin(record)
            state, reason = "available", ""
        except PluginFault:
            state, reason = record.state, record.reason
    answer.give({"state": state, "reason": reason})


if __name__ == "__main__":
    main(sys.argv[1])
