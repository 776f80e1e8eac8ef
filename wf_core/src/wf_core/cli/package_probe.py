"""``python -m wf_core.cli.package_probe MODULE ...``: import modules in this process and say how it went, as one JSON
object. ``MODULE:NAME`` also gets a name of a module, which lazy packages import only then.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from wf_core.broken_packages import cause, culprit
from wf_core.cli.answer import answering


def main(modules: Sequence[str]) -> None:
    """The one object of stdout is the answer, whatever the packages print."""
    with answering() as answer:
        answer.give(probe(modules))


def probe(modules: Sequence[str]) -> dict[str, Any]:
    """``reason`` why one of the modules does not work, "" when all do; ``culprit``, the suspect that it is laid to;
    ``loaded``, every module that came with them, with its own reason.
    """
    reason = laid_to = ""
    try:
        for module in modules:
            _import(module)
        reason = next((why for module in modules if (why := flaw(module))), "")
    except (Exception, SystemExit) as error:
        reason, laid_to = cause(error), culprit(error)
    loaded = {name: flaw(name) for name, module in list(sys.modules.items()) if module is not None}
    return {"reason": reason, "culprit": laid_to, "loaded": loaded}


def flaw(module: str) -> str:
    """Why a module that was imported does not do its work all the same, "" where nothing is known against it."""
    test = TESTS.get(module)
    return test() if test is not None else ""


def _import(place: str) -> None:
    module, _, name = place.partition(":")
    getattr(importlib.import_module(module), name, None) if name else importlib.import_module(module)


def _xformers() -> str:
    """It logs that its C++ part does not fit this torch, and imports."""
    library = sys.modules.get("xformers._cpp_lib")
    error = getattr(library, "_cpp_library_load_exception", None)
    return "" if error is None else f"its C++ part does not load: {' '.join(str(error).split())}"


TESTS: dict[str, Callable[[], str]] = {"xformers.ops": _xformers}

if __name__ == "__main__":
    main(sys.argv[1:])
