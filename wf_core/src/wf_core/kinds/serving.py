"""Which session a computation belongs to, where only tensors arrive: inside the implementation of a custom operator.

A custom operator is what a technique is in compiled code: opaque to the compiler, and called each time, so that it can
count. One compiled graph serves every session of the same shape, hence the operator cannot carry the technique; it
finds it here. The root of the model says whose call is in progress; a context variable, so that two threads do not see
each other's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wf_core.kinds.techniques import Technique

_TECHNIQUES: ContextVar[Mapping[str, Technique] | None] = ContextVar("wf_techniques", default=None)


def serving(feature: str) -> Technique:
    """The technique called ``feature`` of the session whose transformer call is in progress in this thread.

    Raises ``RuntimeError`` outside such a call, and where the session has no such feature: then code that was compiled
    for another session is being run.
    """
    techniques = _TECHNIQUES.get()
    if techniques is None:
        raise RuntimeError(f"{feature!r} was computed outside a session's transformer call")
    if feature not in techniques:
        raise RuntimeError(
            f"this session has no {feature!r}; its features are {', '.join(techniques) or 'none'}"
        )
    return techniques[feature]


@contextmanager
def served_by(techniques: Mapping[str, Technique]) -> Iterator[None]:
    """For the duration of one transformer call."""
    token = _TECHNIQUES.set(techniques)
    try:
        yield
    finally:
        _TECHNIQUES.reset(token)
