"""The witness of a session: what the base and the process were before, to be compared with what they are after."""

from __future__ import annotations

from typing import Any

from wf_core.fingerprint import fingerprint
from wf_core.guard import ProcessState


class Witness:
    """Taken when a session opens: structure and tensor metadata of the base, its contents on request, the process.

    What a user's own run of the base leaves on it (the scheduler's progress) is no difference.
    """

    def __init__(self, base: Any, *, contents: bool) -> None:
        self._base = base
        self._contents = contents
        self._process = ProcessState.capture()
        self._before = fingerprint(base, contents=contents)

    def differences(self, *, restore: bool) -> list[str]:
        """What changed since, one line each. ``restore`` puts the process back; the base is left as it is found."""
        now = fingerprint(self._base, contents=self._contents)
        changed = self._process.diff(ProcessState.capture())
        if changed and restore:
            self._process.restore()
        return self._before.diff(now, run_state=False) + changed
