"""The session's pipeline: the user's own class with one method of its own, the call that opens and closes a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wf_core.errors import BadInput
from wf_core.model.roots import specialise

if TYPE_CHECKING:
    from wf_core.sessions.session import Session

SLOT = "_wf_session"


def _namespace(stock: type) -> Mapping[str, Any]:
    stock_call: Callable[..., Any] = stock.__call__

    @functools.wraps(stock_call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        session: Session | None = self.__dict__.get(SLOT)
        if session is None:
            raise RuntimeError("this pipeline belongs to a session that is closed; open a new one")
        return session.call(functools.partial(stock_call, self), args, kwargs)

    return {"__call__": __call__, "__copy__": _tied, "__deepcopy__": _tied, "__reduce_ex__": _tied}


def _tied(self: Any, *_: Any) -> Any:
    """A copy would open runs of a session that knows nothing of it."""
    raise BadInput(
        "this pipeline belongs to a session, so that it is neither copied nor pickled: copy the pipeline that the "
        "session was opened on, or open another session on it"
    )


def drive(pipe: Any, session: Session) -> None:
    """Make ``pipe``, a session's own copy, open a run of ``session`` at each call."""
    specialise(pipe, _namespace)
    object.__setattr__(pipe, SLOT, session)


def release(pipe: Any) -> None:
    """Later calls of ``pipe`` say that its session is closed."""
    object.__setattr__(pipe, SLOT, None)


def bind(call: functools.partial[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by name with defaults applied. Raises ``TypeError`` as the call itself would."""
    bound = inspect.signature(call).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
