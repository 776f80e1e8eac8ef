"""Watching what a technique's own code does: a host whose techniques are wrapped before they are bound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wf_core.host import Host
from wf_core.kinds.techniques import Technique
from wf_core.model.seams import Handler, Site
from wf_core.plugins.discovery import Discovery

SYNCS = frozenset(
    {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique_consecutive"}
)
"""Operators that make the host wait for a device, or whose result's size depends on values."""


class WatchedHost(Host):
    """A host that wraps the handlers of every technique it builds.

    ``bypassed``: the handlers are not called, as if the technique did nothing. ``calls`` lists each handler call as
    (seam, whether the next layer was called and came to its end); ``grad_left`` the seams at which a handler left the
    grad mode changed. ``inside`` tells whether the current thread is in a plugin's own code.
    """

    def __init__(self, discovery: Discovery) -> None:
        super().__init__(discovery)
        self.bypassed = False
        self.calls: list[tuple[str, bool]] = []
        self.grad_left: list[str] = []
        self.techniques: list[Technique] = []
        self._local = threading.local()

    @property
    def inside(self) -> bool:
        """Whether this thread is in a technique's own code, and not in what it stands around."""
        return bool(getattr(self._local, "inside", False))

    @contextmanager
    def code(self, inside: bool) -> Iterator[None]:
        """Marks the thread as inside a technique's code, or outside again."""
        before, self._local.inside = self.inside, inside
        try:
            yield
        finally:
            self._local.inside = before

    def call_hook(self, plugin: str, hook: str, **arguments: Any) -> Any:
        with self.code(True):
            made = super().call_hook(plugin, hook, **arguments)
        if isinstance(made, Technique):
            self._wrap(made)
        return made

    def _wrap(self, technique: Technique) -> None:
        handlers = technique.handlers
        vars(technique)["handlers"] = lambda: {
            seam: self._wrapped(seam, handler) for seam, handler in handlers().items()
        }
        for name in ("prepare", "begin", "end", "close", "check", "evidence"):
            vars(technique)[name] = self._marked(getattr(technique, name))
        self.techniques.append(technique)

    def _marked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*args: Any) -> Any:
            with self.code(True):
                return method(*args)

        return marked

    def _wrapped(self, seam: str, handler: Handler) -> Handler:
        def wrapped(inner: Callable[..., Any], site: Site, *args: Any) -> Any:
            if self.bypassed:
                return inner(*args)
            went_on = False

            def next_layer(*given: Any) -> Any:
                nonlocal went_on
                with self.code(False):
                    output = inner(*given)
                went_on = True
                return output

            grad = torch.is_grad_enabled()
            with self.code(True):
                result = handler(next_layer, site, *args)
            if torch.is_grad_enabled() != grad:
                self.grad_left.append(seam)
            self.calls.append((seam, went_on))
            return result

        return wrapped


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what the code of the techniques of one host does to tensors: random draws, waits, writes to weights."""

    supports_higher_order_operators = True

    def __init__(self, host: WatchedHost, weights: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._host = host
        self._weights = weights
        self.draws: list[str] = []
        self.syncs: list[str] = []
        self.writes: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._host.inside:
            self._record(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not isinstance(
            func, torch._ops.OpOverload
        ):  # a higher-order operator, whose parts are seen by themselves
            return
        name = func.overloadpacket.__name__
        given = kwargs.get("generator") is not None or any(isinstance(arg, torch.Generator) for arg in args)
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        if (
            seeded and not given and not ("attention" in name or "sdp" in name)
        ):  # tagged for a dropout that nobody asks for
            self.draws.append(name)
        if name in SYNCS:
            self.syncs.append(name)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if (
                written
                and isinstance(value, torch.Tensor)
                and value.untyped_storage().data_ptr() in self._weights
            ):
                self.writes.append(f"{name} on {self._weights[value.untyped_storage().data_ptr()]}")


class Raiser(Technique):
    """Stands innermost on some seams and raises at the n-th call of one of them. ``counts`` are the calls seen."""

    def __init__(self, *seams: str) -> None:
        self.counts = dict.fromkeys(seams, 0)
        self.at: tuple[str, int] | None = None

    def arm(self, seam: str, number: int) -> None:
        """The next run raises at this call, counted from 1."""
        self.at = (seam, number)

    def disarm(self) -> None:
        """The next run goes through."""
        self.at = None

    def begin(self, run: Any) -> None:
        self.counts = dict.fromkeys(self.counts, 0)

    def handlers(self) -> Mapping[str, Handler]:
        return {seam: self._handler(seam) for seam in self.counts}

    def _handler(self, seam: str) -> Handler:
        def handler(inner: Callable[..., Any], site: Site, *args: Any) -> Any:
            self.counts[seam] += 1
            if self.at == (seam, self.counts[seam]):
                raise Injected(f"injected at call {self.counts[seam]} of {seam}")
            return inner(*args)

        return handler


class Injected(RuntimeError):
    """What `Raiser` raises."""


class Stopped(KeyboardInterrupt):
    """What a callback raises that stops a run as Ctrl-C does: no ``except Exception`` sees it."""
