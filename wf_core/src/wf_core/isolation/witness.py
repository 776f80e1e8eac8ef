"""The witness of a session: what the base was when it opened, and what plugin code did to the process since."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from wf_core.isolation.fingerprint import fingerprint
from wf_core.isolation.guard import ProcessState


class Witness:
    """Taken when a session opens: structure and tensor metadata of the base, its classes, its contents on request.

    What a user's own run of the base leaves on it (the scheduler's progress) is no difference. The process is watched
    only while plugin code may run (opening, each run, closing): between those moments its settings are the user's.
    """

    moved: Collection[str] = ()
    """Components that such a run moves: where their tensors lie is no difference either."""

    def __init__(self, base: Any, *, contents: bool) -> None:
        self._base = base
        self._contents = contents
        self._before = fingerprint(base, contents=contents)
        self._process: list[str] = []

    @contextmanager
    def watching(self, overlapped: set[str], *, own_thread: bool = True) -> Iterator[None]:
        """Note what changes in the process meanwhile, and put it back unless other sessions were open too.

        ``own_thread=False`` leaves out the settings of the thread: the caller's own code runs meanwhile.
        """
        before = ProcessState.capture()
        try:
            yield
        finally:
            changed = before.diff(ProcessState.capture(), per_thread=own_thread)
            self._process += changed
            if changed and not overlapped:
                before.restore()

    def differences(self) -> list[str]:
        """What changed since, one line each; the base is left as it is found."""
        now = fingerprint(self._base, contents=self._contents)
        return self._before.diff(now, run_state=False, moved=self.moved) + self._process
