"""wf: a minimal plugin host that accelerates open video diffusion models, and can prove that it did.

Everything is imported on first use, so that ``import wf_core`` costs nothing and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wf_core.errors import BadInput as BadInput
    from wf_core.errors import BaseModified as BaseModified
    from wf_core.errors import Busy as Busy
    from wf_core.errors import CannotCopy as CannotCopy
    from wf_core.errors import PluginFault as PluginFault
    from wf_core.errors import Refused as Refused
    from wf_core.errors import WfError as WfError
    from wf_core.facts import Facts as Facts
    from wf_core.host import Host as Host
    from wf_core.resolving.plan import Plan as Plan
    from wf_core.resolving.plan import Refusal as Refusal
    from wf_core.sessions.report import Report as Report
    from wf_core.sessions.session import Session as Session

__version__ = "0.1.0"

_HOME = {
    "BadInput": "errors",
    "BaseModified": "errors",
    "Busy": "errors",
    "CannotCopy": "errors",
    "Facts": "facts",
    "Host": "host",
    "Plan": "resolving.plan",
    "PluginFault": "errors",
    "Refusal": "resolving.plan",
    "Refused": "errors",
    "Report": "sessions.report",
    "Session": "sessions.session",
    "WfError": "errors",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'wf_core' has no attribute {name!r}")
    return getattr(import_module(f"wf_core.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
