"""How an adapter puts a seam around stock code: the wrapper of one model, and spans with hidden arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from wf_core.api import Wiring


class Wrap(Protocol):
    """``Wiring.wrap`` with the root's name filled in."""

    def __call__(self, seam: str, stock: Callable[..., Any], **site: Any) -> Callable[..., Any]: ...


def wrapper(wiring: Wiring, root: str) -> Wrap:
    """The ``wrap`` of one root (``"transformer"``, ``"transformer_2"``, ``"vae"``)."""
    return partial(wiring.wrap, root=root)


class Span:
    """``stock(x, *rest)`` behind a seam whose handlers see and return ``x`` alone.

    ``rest`` (text, time signal, rope tables ...) is the same for every layer of handlers, so it is kept here for the
    duration of the call and dropped at its end, also when the call raises. Without a claim it is handed straight
    through. A span belongs to one session, whose calls come one after another.
    """

    __slots__ = ("_chain", "_inner", "claimed")

    def __init__(self, stock: Callable[..., Any], wrap: Wrap, seam: str, **site: Any) -> None:
        self._inner = _Inner(stock)
        self._chain = wrap(seam, self._inner, **site)
        self.claimed = self._chain is not self._inner

    def __call__(self, x: Any, *rest: Any) -> Any:
        inner = self._inner
        if not self.claimed:
            return inner.stock(x, *rest)
        inner.rest = rest
        try:
            return self._chain(x)
        finally:
            inner.rest = ()


class _Inner:
    """The end of a span's chain. An object of its own, so that the chain does not refer back to the span."""

    __slots__ = ("rest", "stock")

    def __init__(self, stock: Callable[..., Any]) -> None:
        self.stock = stock
        self.rest: tuple[Any, ...] = ()

    def __call__(self, x: Any) -> Any:
        return self.stock(x, *self.rest)
