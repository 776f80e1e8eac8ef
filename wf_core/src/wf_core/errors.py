"""Every error that the host raises on purpose. One exception per kind of misuse.

The command line turns each of these into one line on stderr and exit code 2; anything else is a fault of the
host and ends with exit code 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wf_core.values import clipped

if TYPE_CHECKING:
    from wf_core.resolving.plan import Refusal


class WfError(Exception):
    """Base of all errors that say something about the caller's input, a plugin, or the machine.

    The message may quote any of them, and is clipped to what can be read.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(clipped(message))


class BadInput(WfError):
    """An argument, file or path that cannot be used. The message names it and the next step."""


class Refused(WfError):
    """A request that may not run. ``refusal`` holds every violated rule, as data.

    Raised by ``Host.resolve`` and ``Host.session``, and out of ``s.pipe(...)`` at the begin of a run (with no
    model call made).
    """

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.one_line())


class CannotCopy(WfError):
    """A base that already carries hooks or an overridden ``forward``: a copy would run the original's modules."""


class PluginFault(WfError):
    """A plugin that failed, or that did what it had not declared. Names the plugin and the place."""

    def __init__(self, plugin: str, where: str, message: str) -> None:
        self.plugin = plugin
        self.where = where
        super().__init__(f"plugin {plugin!r}, {where}: {message}")


class BaseModified(WfError):
    """The base or the process state differs after a session. ``differences`` lists what changed."""

    def __init__(self, differences: list[str], plugins: tuple[str, ...]) -> None:
        self.differences = differences
        self.plugins = plugins
        who = ", ".join(plugins) or "no plugin"
        super().__init__(f"changed while a session with {who} was open: " + "; ".join(differences))


class Busy(WfError):
    """A second run was started on a session whose run has not ended, or an exclusive session cannot be had."""


class Ineligible(Exception):
    """Raised by a technique, inside a seam, for one call that it cannot serve; the message is the reason.

    With ``on_ineligible="dense"`` the host counts it and runs the stock computation; otherwise it becomes a
    ``PluginFault``. Never raise it for out-of-memory.
    """
