"""Variants: what is made from a base's weights once and shared by the sessions on it (packed, cast weights ...).

A session opens in milliseconds because everything slow lives here. A variant is known by the feature that made it, a
key of the feature's own and the tensors that it was made from; it dies with any of them. Sessions hold it while they
are open; what no session holds is kept for the next one, up to a budget, the least recently used going first.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Key = tuple[Any, ...]


class Entry:
    """One variant. ``users`` is the number of open sessions that hold it."""

    def __init__(self, key: Key, sources: Sequence[torch.Tensor], build: Callable[[], Any]) -> None:
        self.key = key
        self.value = _built(build)
        self.bytes = _bytes(self.value)
        self.users = 0
        self.watched: list[weakref.finalize[Any, Any]] = []
        self._sources = [(weakref.ref(source), _state(source)) for source in sources]

    def fresh(self) -> bool:
        """Whether every source is alive and was not written to since, as far as torch tells (not through ``.data``)."""
        live = [(ref(), state) for ref, state in self._sources]
        return all(source is not None and _state(source) == state for source, state in live)


class VariantStore:
    """The variants of one host. ``budget`` is the bytes that variants which no session holds may take."""

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._lock = threading.RLock()

    def take(self, key: Key, sources: Sequence[torch.Tensor], build: Callable[[], Any]) -> Entry:
        """The entry of the key, built now unless it is there and its sources are what they were; held once more."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.fresh():
                self._drop(key)
                entry = self._entries[key] = Entry(key, sources, build)
                told = (weakref.ref(self), key, weakref.ref(entry))
                entry.watched = [weakref.finalize(source, _forget, *told) for source in sources]
            entry.users += 1
            self._entries.move_to_end(key)
            return entry

    def give_back(self, entry: Entry) -> None:
        """One session less holds the entry."""
        with self._lock:
            entry.users -= 1
            self.release(self.budget)

    def release(self, down_to: int = 0) -> int:
        """Drop what no session holds, the least recently used first, until at most ``down_to`` bytes of it are left.

        Returns the bytes let go.
        """
        with self._lock:
            idle = [entry for entry in list(self._entries.values()) if not entry.users]
            kept, freed = sum(entry.bytes for entry in idle), 0
            for entry in idle:
                if kept <= down_to:
                    break
                kept -= entry.bytes
                freed += entry.bytes
                self._drop(entry.key)
            return freed

    def _drop(self, key: Key) -> None:
        """Take an entry out, and let its sources go unwatched: a base outlives many sessions."""
        entry = self._entries.pop(key, None)
        for watched in entry.watched if entry is not None else ():
            watched.detach()

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Each variant's feature, key, bytes and number of sessions that hold it, the least recently used first."""
        with self._lock:
            return tuple(
                {"feature": e.key[0], "key": e.key[1], "bytes": e.bytes, "sessions": e.users}
                for e in list(self._entries.values())
            )

    def forget(self, key: Key, entry: Entry) -> None:
        """A source of the entry died."""
        with self._lock:
            if self._entries.get(key) is entry:
                self._drop(key)


def _forget(store: weakref.ref[VariantStore], key: Key, entry: weakref.ref[Entry]) -> None:
    alive, made = store(), entry()
    if alive is not None and made is not None:
        alive.forget(key, made)


class Variants:
    """One technique's view of the store, for the life of its session."""

    def __init__(self, store: VariantStore, feature: str) -> None:
        self._store = store
        self._feature = feature
        self._held: list[Entry] = []
        weakref.finalize(self, _give_back, store, self._held)  # of a session that nobody closed

    def get(self, key: str, sources: Sequence[torch.Tensor], build: Callable[[], Any]) -> Any:
        """The variant called ``key`` of these base tensors: built by ``build()`` the first time, shared afterwards.

        ``build`` must not keep the sources alive by what it returns. The value is a tensor, or lists and mappings of
        tensors; sessions share it, so nobody writes to it.
        """
        entry = self._store.take((self._feature, key, *map(id, sources)), sources, build)
        self._held.append(entry)
        return entry.value

    def close(self) -> None:
        """The session closes: it holds nothing any more."""
        _give_back(self._store, self._held)


def _give_back(store: VariantStore, held: list[Entry]) -> None:
    while held:
        store.give_back(held.pop())


def _built(build: Callable[[], Any]) -> Any:
    """What is built, outside inference mode: a later session may want gradients through it."""
    import torch

    with torch.inference_mode(False):
        return build()


def _state(source: torch.Tensor) -> tuple[Any, ...]:
    version = None if source.is_inference() else source._version
    return version, source.data_ptr(), source.dtype


def _bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, Mapping):
        yield from _all(value.values())
    elif isinstance(value, list | tuple):
        yield from _all(value)


def _all(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from _tensors(value)
