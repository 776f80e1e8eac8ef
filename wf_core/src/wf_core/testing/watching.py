"""Watching what a technique's own code does: a host whose techniques are wrapped before they are bound."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wf_core.host import Host
from wf_core.kinds.techniques import Technique
from wf_core.model.seams import Handler, Site
from wf_core.plugins.discovery import Discovery

Versions = list[tuple[torch.Tensor, int]]
"""Tensors with the number of writes to each so far."""
SYNCS = frozenset(
    {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique_consecutive"}
)
"""Operators that make the host wait for a device, or whose result's size depends on values."""


class WatchedHost(Host):
    """A host that wraps the handlers of every technique it builds.

    ``bypassed``: the handlers are not called, as if the technique did nothing. ``calls`` lists each handler call as
    (seam, whether the next layer was called and came to its end); ``grad_left`` the seams at which a handler left the
    grad mode changed, ``overwritten`` those at which it wrote to a tensor that its technique had not made. ``inside``
    tells whether the current thread is in a plugin's own code.
    """

    def __init__(self, discovery: Discovery) -> None:
        super().__init__(discovery)
        self.bypassed = False
        self.calls: list[tuple[str, bool]] = []
        self.grad_left: list[str] = []
        self.overwritten: list[str] = []
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
        handlers, made = technique.handlers, Made()
        vars(technique)["handlers"] = lambda: {
            seam: self._wrapped(seam, handler, made) for seam, handler in handlers().items()
        }
        for name in ("prepare", "begin", "end", "close", "check", "evidence"):
            vars(technique)[name] = self._marked(getattr(technique, name))
        self.techniques.append(technique)

    def _marked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*args: Any) -> Any:
            with self.code(True):
                return method(*args)

        return marked

    def _wrapped(self, seam: str, handler: Handler, made: Made) -> Handler:
        def wrapped(inner: Callable[..., Any], site: Site, *args: Any) -> Any:
            if self.bypassed:
                return inner(*args)
            went_on, others = False, made.others(args)

            def next_layer(*given: Any) -> Any:
                nonlocal went_on, others
                self._compare(seam, others)
                with self.code(False):
                    output = inner(*given)
                went_on = True
                others = made.others((*args, output))
                return output

            grad = torch.is_grad_enabled()
            with self.code(True):
                result = handler(next_layer, site, *args)
            if torch.is_grad_enabled() != grad:
                self.grad_left.append(seam)
            self._compare(seam, others)
            made.note(result, others)
            self.calls.append((seam, went_on))
            return result

        return wrapped

    def _compare(self, seam: str, others: Versions) -> None:
        if any(tensor._version != version for tensor, version in others):
            self.overwritten.append(seam)


class Made:
    """The tensors that one technique's handlers gave and that nobody had given them: these they may write to."""

    def __init__(self) -> None:
        self._own: dict[int, weakref.ref[torch.Tensor]] = {}

    def others(self, values: Any) -> Versions:
        """The tensors among values, and in tuples among them, that are not the technique's own, and their versions."""
        found = (part for value in values for part in (value if isinstance(value, tuple) else (value,)))
        return [
            (part, part._version)
            for part in found
            if isinstance(part, torch.Tensor) and not part.is_inference() and not self._is_own(part)
        ]

    def note(self, result: Any, others: Versions) -> None:
        """A handler gave this; what is among ``others`` it only passed on."""
        given = {id(tensor) for tensor, _ in others}
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, torch.Tensor) and id(part) not in given:
                self._own[id(part)] = weakref.ref(part)

    def _is_own(self, tensor: torch.Tensor) -> bool:
        known = self._own.get(id(tensor))
        return known is not None and known() is tensor


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
