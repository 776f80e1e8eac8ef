"""Foreign packages: import one late, tell its version, call its function by the names it knows, read its errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from typing import Any

import torch

from wf_core.api import Ineligible

UNSUPPORTED = (
    "not supported",
    "unsupported",
    "only supports",
    "requires sm",
    "no kernel image",
    "invalid device function",
    "not compiled with",
)
"""What a message contains that says "not this call" and not "something is broken"."""


def function_of(module: str, name: str) -> Callable[..., Any]:
    """The function ``name`` of ``module``, imported now. ``Ineligible`` where it cannot be had.

    A compiled extension that was built for another torch raises OSError (a symbol is missing) as often as ImportError,
    and a package beside another release of what it stands on raises AttributeError.
    """
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, OSError, AttributeError) as error:
        raise Ineligible(f"{module}.{name} cannot be imported ({told(error)})") from error


def version_of(distribution: str) -> str:
    """The installed version of a distribution, or "" where its metadata is missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: "2.8.3.post2" -> (2, 8, 3). What follows them is not compared."""
    numbers = re.match(r"\d[\d.]*", version)
    return tuple(int(number) for number in numbers[0].split(".") if number) if numbers else ()


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function by name, or None for one that does not tell, as compiled ones may not."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def keywords(function: Callable[..., Any], **wanted: Any) -> dict[str, Any]:
    """Those of ``wanted`` that ``function`` has a parameter for, by that name; all, where it does not tell.

    A ``**kwargs`` counts for nothing: packages use it to swallow what they do not honour.
    """
    known = parameters_of(function)
    return wanted if known is None else {name: value for name, value in wanted.items() if name in known}


def require_keyword(function: Callable[..., Any], name: str, what: str) -> None:
    """``Ineligible`` where ``function`` has no parameter of that name, without which its result would be another."""
    known = parameters_of(function)
    if known is not None and name not in known:
        raise Ineligible(f"{what} has no argument {name!r} in this version, only {', '.join(known)}")


def only(result: Any) -> torch.Tensor:
    """The attention out of what a package returns: itself, or the first of a tuple with the log-sum-exp."""
    out = result[0] if isinstance(result, tuple | list) else result
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"the package returned {type(out).__name__} where a tensor was expected")
    return out


def unsupported(error: Exception) -> bool:
    """Whether an error says that a kernel does not serve such a call. Out-of-memory never does."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    message = str(error).lower()
    return any(words in message for words in UNSUPPORTED)


def told(error: BaseException) -> str:
    """An error in one line: its type and the first line of its message, cut to a length that can be read."""
    lines = str(error).strip().splitlines()
    first = lines[0].strip() if lines else ""
    return f"{type(error).__name__}: {first[:300]}" if first else type(error).__name__
