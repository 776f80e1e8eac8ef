"""One lock for the process: sessions share it, a session with process-wide settings holds it alone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import frozen

from wf_core.errors import BadInput, Busy


@frozen(eq=False)
class LockToken:
    """What an acquisition returns and ``release`` takes, from whichever thread. ``thread`` is the one that asked.

    The thread object is kept rather than its number, which the system gives to the next thread once this one ends.
    """

    owner: str
    exclusive: bool
    thread: threading.Thread


class ProcessLock:
    """A shared/exclusive lock which serves requests in order of arrival.

    A shared request waits behind an exclusive one that came earlier, so a steady stream of sessions cannot starve
    it, nor the other way round. A thread that already shares the lock may share it again without queueing, for it
    would otherwise wait for somebody who waits for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: list[LockToken] = []
        self._queue: deque[LockToken] = deque()

    @property
    def holders(self) -> tuple[str, ...]:
        """Owners that hold the lock now, in order of acquisition."""
        with self._changed:
            return tuple(token.owner for token in self._held)

    def acquire_shared(self, owner: str, timeout: float | None = None) -> LockToken:
        """Wait until nobody holds the lock exclusively. ``timeout`` in seconds; None waits without end.

        Raises:
            Busy: the time ran out, or this thread itself holds the lock exclusively.
        """
        return self._acquire(LockToken(owner, False, threading.current_thread()), timeout)

    def acquire_exclusive(self, owner: str, timeout: float | None = 0.0) -> LockToken:
        """Wait until nobody else holds the lock. ``timeout`` in seconds; None waits without end.

        Raises:
            Busy: the time ran out, or this thread holds the lock in any way (waiting could never end).
        """
        return self._acquire(LockToken(owner, True, threading.current_thread()), timeout)

    def release(self, token: LockToken) -> None:
        """Give the lock back, from any thread.

        Raises:
            BadInput: the token is not held (released twice, or of another lock).
        """
        with self._changed:
            if token not in self._held:
                raise BadInput(f"the process lock is not held by {token.owner!r}: it was released before")
            self._held.remove(token)
            self._changed.notify_all()

    @contextmanager
    def shared(self, owner: str, timeout: float | None = None) -> Iterator[LockToken]:
        """``acquire_shared`` and ``release`` as a context."""
        token = self.acquire_shared(owner, timeout)
        try:
            yield token
        finally:
            self.release(token)

    @contextmanager
    def exclusive(self, owner: str, timeout: float | None = 0.0) -> Iterator[LockToken]:
        """``acquire_exclusive`` and ``release`` as a context."""
        token = self.acquire_exclusive(owner, timeout)
        try:
            yield token
        finally:
            self.release(token)

    def _acquire(self, request: LockToken, timeout: float | None) -> LockToken:
        with self._changed:
            self._refuse_nesting(request)
            self._queue.append(request)
            try:
                if not self._changed.wait_for(lambda: self._may_enter(request), timeout):
                    raise Busy(self._message(request, f"not free within {timeout:g} s"))
                self._held.append(request)
            finally:
                self._queue.remove(request)
                self._changed.notify_all()
        return request

    def _refuse_nesting(self, request: LockToken) -> None:
        mine = [token for token in self._held if token.thread == request.thread]
        if mine and (request.exclusive or any(token.exclusive for token in mine)):
            raise Busy(self._message(request, "this thread holds it already, so waiting could not help"))

    def _may_enter(self, request: LockToken) -> bool:
        if request.exclusive:
            return not self._held and self._queue[0] is request
        if any(token.exclusive for token in self._held):
            return False
        if any(token.thread == request.thread for token in self._held):
            return True
        ahead = list(self._queue)[: self._queue.index(request)]
        return not any(token.exclusive for token in ahead)

    def _message(self, request: LockToken, why: str) -> str:
        mode = "exclusively" if request.exclusive else "together with others"
        held = ", ".join(f"{t.owner} ({'exclusive' if t.exclusive else 'shared'})" for t in self._held)
        behind = [t.owner for t in self._queue if t.exclusive and t is not request]
        waiting = f"; waiting before it: {', '.join(behind)}" if behind else ""
        return f"{request.owner} needs the process {mode}: {why}; held by {held or 'nobody'}{waiting}"
