"""Watching and restoring process-wide state. Nothing here imports torch: what is not loaded has no state yet."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any

import attrs
from attrs import field, frozen

from wf_core.errors import BadInput
from wf_core.isolation.process_settings import SETTINGS, Setting

#: Variables in which torch remembers a default that it worked out itself, on import or at the first compilation.
_WRITTEN_BY_TORCH = frozenset(
    {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"}
)


def _loaded(setting: Setting) -> Any:
    """The library which owns the setting, or None where it is not imported, or not to the end."""
    library = sys.modules.get(setting.module)
    spec = getattr(library, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else library


@frozen
class ProcessState:
    """The settings of torch and diffusers, and the environment variables, at one moment.

    ``values`` holds only settings of libraries that were loaded. Grad mode and default device belong to a thread:
    they are compared and restored only in the thread that captured them.
    """

    environ: Mapping[str, str] = field(repr=False)
    values: Mapping[str, Any]
    thread: threading.Thread = field(repr=False)

    @classmethod
    def capture(cls) -> ProcessState:
        """Read everything; changes nothing, warns about nothing, takes well under a millisecond."""
        libraries = {name: _loaded(setting) for name, setting in SETTINGS.items()}
        values = {
            name: SETTINGS[name].read(library) for name, library in libraries.items() if library is not None
        }
        return cls(MappingProxyType(dict(os.environ)), MappingProxyType(values), threading.current_thread())

    def diff(self, other: ProcessState, *, per_thread: bool = True) -> list[str]:
        """One line for each setting that differs in ``other``, taken later. Values of variables are never shown.

        ``per_thread=False`` leaves out what belongs to the thread alone.
        """
        lines = []
        for name in other.values:
            before, after = self._baseline(name), other.values[name]
            comparable = per_thread and self.thread is other.thread
            if before != after and (comparable or not SETTINGS[name].per_thread):
                lines.append(f"{name}: {SETTINGS[name].show(before)} -> {SETTINGS[name].show(after)}")
        return lines + _environ_diff(self.environ, other.environ)

    def restore(self, names: Collection[str] | None = None) -> list[str]:
        """Put back every setting (or only ``names``), and without ``names`` the environment too.

        Returns the lines of ``diff`` that are still true afterwards: empty if all could be put back.
        """
        for name, setting in SETTINGS.items():
            library = _loaded(setting)
            if library is None or (names is not None and name not in names):
                continue
            if setting.per_thread and self.thread is not threading.current_thread():
                continue
            if setting.read(library) != self._baseline(name):
                setting.write(library, self._baseline(name))
        if names is None:
            _restore_environ(self.environ)
        remaining = self.diff(ProcessState.capture())
        return [line for line in remaining if names is None or line.partition(":")[0] in names]

    def _baseline(self, name: str) -> Any:
        """The captured value; where the library was loaded only later, the value of a fresh import."""
        if name in self.values:
            return self.values[name]
        setting = SETTINGS[name]
        return setting.fresh(sys.modules[setting.module])


def _environ_diff(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name) and not (name in _WRITTEN_BY_TORCH and name not in before):
            verb = "set" if name not in before else "removed" if name not in after else "changed"
            lines.append(f"environment variable {name} {verb}")
    return lines


def _restore_environ(saved: Mapping[str, str]) -> None:
    for name in set(os.environ) - saved.keys() - _WRITTEN_BY_TORCH:
        del os.environ[name]
    for name, value in saved.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@frozen
class _Stream:
    """A random number stream which an import must not draw from. ``key`` turns a state into something comparable."""

    name: str
    module: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    key: Callable[[Any], Any]

    def moved_since(self, before: Any) -> bool:
        """Whether numbers were drawn, or the stream was seeded, since its state was read."""
        return bool(self.key(self.read(sys.modules[self.module])) != self.key(before))


def _numpy_key(state: dict[str, Any]) -> tuple[Any, ...]:
    inner = state["state"]
    return inner["key"].tobytes(), inner["pos"], state["has_gauss"], state["gauss"]


_STREAMS = (
    _Stream(
        "python's random", random.__name__, lambda m: m.getstate(), lambda m, s: m.setstate(s), lambda s: s
    ),
    _Stream(
        "numpy.random",
        "numpy.random",
        lambda m: m.get_state(legacy=False),
        lambda m, s: m.set_state(s),
        _numpy_key,
    ),
    _Stream(
        "torch's CPU generator",
        "torch",
        lambda m: m.get_rng_state(),
        lambda m, s: m.set_rng_state(s),
        lambda s: bytes(s.tolist()),
    ),
)


class ImportGuard:
    """Keeps the import of foreign code from changing the process. ``changes`` says afterwards what it tried.

    A library that the import itself brings in was at no value before. Its settings are compared with those of a
    fresh import, which ``process_settings`` lists, so importing torch is no change while importing torch and then
    calling ``torch.set_default_dtype`` is one. Its random stream is not compared: it starts from an unpredictable
    seed, so nothing can have relied on it. Generators of accelerators are left alone as reading them would start
    the driver.

    Everything is restored, also when the import raises. What other threads change at the same time cannot be told
    apart; so where the import is not ``alone``, the environment and the random streams, which running sessions may
    well touch, are neither compared nor put back. Random numbers that were drawn while other threads run are laid to
    the import only if it changed something else as well.
    """

    def __init__(self, *, alone: bool = True) -> None:
        self.changes: list[str] = []
        self._alone = alone

    def __enter__(self) -> ImportGuard:
        self._state = ProcessState.capture()
        self._streams = [
            (stream, stream.read(sys.modules[stream.module]))
            for stream in _STREAMS
            if self._alone and stream.module in sys.modules
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        before = self._state if self._alone else attrs.evolve(self._state, environ=dict(os.environ))
        changes = before.diff(ProcessState.capture())
        failed = before.restore()
        changes += [f"{line} (could not be put back)" for line in failed]
        drawn = [(stream, kept) for stream, kept in self._streams if stream.moved_since(kept)]
        if drawn and (changes or threading.active_count() == 1):
            for stream, kept in drawn:
                changes.append(f"random numbers drawn or seeded: {stream.name}")
                stream.write(sys.modules[stream.module], kept)
        self.changes.extend(changes)


def import_guard(*, alone: bool = True) -> ImportGuard:
    """``with import_guard() as guard: import_it()``, then read ``guard.changes``."""
    return ImportGuard(alone=alone)


def _set_allow_tf32(torch: Any, value: bool) -> None:
    SETTINGS["matmul_precision"].write(torch, "high" if value else "highest")
    SETTINGS["fp32_cudnn_conv_rnn"].write(torch, ("tf32", "tf32") if value else ("none", "none"))


def _set_deterministic(torch: Any, value: bool) -> None:
    SETTINGS["deterministic"].write(torch, (value, False))


_MATMUL = ("matmul_precision", "fp32_cuda_matmul", "fp32_mkldnn_matmul")
#: Name that a plan may declare -> (settings it touches, how it is set).
GLOBAL_SETTERS: Mapping[str, tuple[tuple[str, ...], Callable[[Any, Any], None]]] = {
    "allow_tf32": ((*_MATMUL, "fp32_cudnn_conv_rnn"), _set_allow_tf32),
    "matmul_precision": (_MATMUL, SETTINGS["matmul_precision"].write),
    "deterministic": (("deterministic",), _set_deterministic),
    **{
        name: ((name,), SETTINGS[name].write)
        for name in ("cudnn_benchmark", "sdpa_flash", "sdpa_mem_efficient", "sdpa_math", "sdpa_cudnn")
    },
}


@contextmanager
def process_global(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set declared process-wide settings of torch and put back, on any exit, exactly what they touch.

    The caller holds the process lock exclusively.

    Raises:
        BadInput: a name that is not in ``GLOBAL_SETTERS``, or torch is not loaded; nothing was set then.
    """
    unknown = sorted(settings.keys() - GLOBAL_SETTERS.keys())
    if unknown:
        known = ", ".join(sorted(GLOBAL_SETTERS))
        raise BadInput(f"no process-wide setting named {', '.join(unknown)}; use one of {known}")
    torch = sys.modules.get("torch")
    if torch is None and settings:
        raise BadInput("process-wide settings of torch were asked for, but torch is not loaded")
    before = ProcessState.capture()
    touched = {name for asked in settings for name in GLOBAL_SETTERS[asked][0]}
    try:
        for name, value in settings.items():
            GLOBAL_SETTERS[name][1](torch, value)
        yield
    finally:
        before.restore(touched)
