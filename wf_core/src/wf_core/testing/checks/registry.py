"""What a check is, and which checks there are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Literal, TypeVar

import attrs

from wf_core.errors import WfError
from wf_core.manifests.vocabulary import MODEL_KINDS

About = Literal["plugin", "feature", "family", "model"]
MODULES = ("manifest", "packaging", "options", "effects", "isolation", "results", "ranks", "models")


class Nonconformity(WfError):
    """A plugin does not do what it must. The message says what was seen, what was expected, and what to change."""


class NotApplicable(Exception):
    """A check that has nothing to look at here; the message says why."""


@attrs.frozen
class Check:
    """One check: its name, the sentence that says what it proves, what it is about, and the function.

    ``needs_code``: the check runs the plugin's code, so that it is left out for what is only declared. ``after`` names
    checks that must not fail first: this one would only repeat what they say, or judge by what is wrong already.
    """

    name: str
    says: str
    about: About
    needs_code: bool
    run: Callable[..., None]
    after: tuple[str, ...] = ()


_FOUND: dict[str, Check] = {}
Function = TypeVar("Function", bound=Callable[..., None])


CAN_BE_ASKED_FOR = ("examples_turn_their_features_on", "every_hook_is_implemented")
"""What comes before every check that runs a feature."""


def check(
    about: About, *, needs_code: bool = True, after: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Registers a function as a check; its name and the first line of its docstring are the check's own."""

    def register(function: Function) -> Function:
        name = function.__name__
        says = (function.__doc__ or "").strip().partition("\n")[0]
        first = CAN_BE_ASKED_FOR if about == "feature" and needs_code else ()
        _FOUND[name] = Check(name, says, about, needs_code, function, (*first, *after))
        return function

    return register


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check, in the order of the modules and of the functions in them."""
    for module in MODULES:
        importlib.import_module(f"wf_core.testing.checks.{module}")
    return tuple(_FOUND.values())


def check_named(name: str) -> Check:
    """The check of that name."""
    all_checks()
    return _FOUND[name]


def checks_for(kind: str, *, implemented: bool) -> tuple[Check, ...]:
    """The checks for a plugin of a kind; without code, those of its declarations alone."""
    about: Iterable[str] = ("plugin", "feature")
    if kind in MODEL_KINDS:
        about = ("plugin", "family") if kind == "model-family" else ("plugin", "model")
    return tuple(c for c in all_checks() if c.about in about and (implemented or not c.needs_code))
