"""Importing one plugin, when a session needs it. A failed import leaves nothing behind."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from wf_core.errors import PluginFault
from wf_core.plugins.discovery import PluginRecord


def load_plugin(record: PluginRecord, *, alone: bool = True) -> Any:
    """The plugin's module (or the attribute that its entry point names), imported under the process guard.

    A module that is imported already is not guarded again. ``alone`` says that no session is open beside the one
    that asks, so that every change of the process can be laid to the import.

    Raises `PluginFault` when the plugin is not available, its import fails or exits, or it changes process state;
    the record's state is "broken" from then on.
    """
    from wf_core.isolation.guard import import_guard

    if record.state != "available":
        raise PluginFault(record.name, "import", f"it is {record.state}: {record.reason}")
    if record.module in sys.modules:
        return _import(record)
    before = set(sys.modules)
    guard = import_guard(alone=alone)
    try:
        with guard:
            loaded = _import(record)
    except (Exception, SystemExit) as error:
        _forget(record.module, before)
        raise _fault(record, _cause(error)) from error
    except BaseException:
        _forget(record.module, before)
        raise
    if guard.changes:
        _forget(record.module, before)
        raise _fault(record, "its import changed the process: " + "; ".join(guard.changes))
    return loaded


def _import(record: PluginRecord) -> Any:
    module = importlib.import_module(record.module)
    target: Any = module
    for name in filter(None, record.attribute.split(".")):
        target = getattr(target, name)
    return target


def _cause(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it exits at import ({error.code})"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _fault(record: PluginRecord, cause: str) -> PluginFault:
    record.remember_fault(f"import failed: {cause}")
    return PluginFault(record.name, "import", cause)


def _forget(module: str, before: set[str]) -> None:
    """Removes what the failed import left of the plugin's own package; libraries that it loaded stay."""
    top = module.partition(".")[0]
    for name in [name for name in sys.modules if name == top or name.startswith(top + ".")]:
        if name not in before:
            del sys.modules[name]
