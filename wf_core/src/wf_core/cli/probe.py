"""``python -m wf_core.cli.probe NAME MODULE [ATTRIBUTE]``: import one plugin in this process and say how it went, as
one JSON line. Nothing is discovered: the caller has done that, once for all plugins.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from wf_core.cli.answer import Answer, answering
from wf_core.errors import PluginFault
from wf_core.plugins.discovery import PluginRecord
from wf_core.plugins.loading import load_plugin


def main(name: str, module: str, attribute: str = "") -> None:
    """The one line of stdout is the answer, whatever the plugin prints."""
    with answering() as answer:
        _probe(PluginRecord(name, distribution="", module=module, attribute=attribute), answer)


def _probe(record: PluginRecord, answer: Answer) -> None:
    with suppress(PluginFault):  # the record remembers it
        load_plugin(record)
    answer.give({"state": record.state, "reason": record.reason})


if __name__ == "__main__":
    main(*sys.argv[1:])
