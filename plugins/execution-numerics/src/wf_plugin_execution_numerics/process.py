"""What the features that set flags of the whole process share: the host sets them, and they look whether it is so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from wf_core.api import Handler, RunView, Site, Technique


class ProcessSetting(Technique, ABC):
    """Names settings for the host to hold, and counts the transformer calls inside of which torch has them.

    A technique must not set such a flag itself: the host sets it when the session opens, alone in the process, and puts
    it back on every way out. What is counted is read from torch in the call, so that a flag which somebody else changed
    meanwhile makes the feature partial.
    """

    counter = "calls_under_setting"

    def __init__(self) -> None:
        self._seen: Mapping[str, Any] = {}

    @abstractmethod
    def read(self) -> Mapping[str, Any]:
        """What torch says now, by the name of what is looked at: plain JSON values."""

    @abstractmethod
    def holds(self, seen: Mapping[str, Any]) -> bool:
        """Whether that is what was asked for."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"denoiser": self._around}

    def begin(self, run: RunView) -> None:
        self._seen = {}

    def _around(self, inner: Callable[..., Any], site: Site, *args: Any) -> Any:
        self.counters.add("calls")
        self._seen = self.read()
        if self.holds(self._seen):
            self.counters.add(self.counter)
        return inner(*args)

    def evidence(self) -> Mapping[str, object]:
        """What torch said inside the last call."""
        return {"seen": dict(self._seen)}
