"""The sessions that are open in this process: who holds the process-wide lock, and who overlapped with whom.

Process-wide state has one owner per process, whatever number of hosts there are; so this is the one place in the
core with module-level state.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from wf_core.isolation.process_lock import LockToken, ProcessLock

if TYPE_CHECKING:
    from wf_core.sessions.session import Session

_lock = ProcessLock()
_guard = threading.Lock()
_open: WeakSet[Session] = WeakSet()
_given_back: WeakSet[LockToken] = WeakSet()


def acquire(session: Session, *, exclusive: bool, wait: float) -> LockToken:
    """Take the process-wide lock for a session and record it as open. Raises ``Busy`` after ``wait`` seconds.

    Every other open session and this one overlap from now on.
    """
    token = (_lock.acquire_exclusive if exclusive else _lock.acquire_shared)(session.name, wait)
    with _guard:
        for other in _open:
            other.overlapped.add(session.name)
            session.overlapped.add(other.name)
        _open.add(session)
    return token


def release(session: Session, token: LockToken) -> None:
    """The session is closed, or its opening failed."""
    with _guard:
        _open.discard(session)
    give_back(token)


def give_back(token: LockToken) -> None:
    """Let go of the lock; no error if it was let go before. Also what happens to a session that is dropped open."""
    with _guard:
        if token in _given_back:
            return
        _given_back.add(token)
    _lock.release(token)


def alone() -> bool:
    """Whether at most one session is open in this process."""
    with _guard:
        return len(_open) <= 1
