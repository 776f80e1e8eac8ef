"""``-s key=value`` and ``--load-json FILE``: the request as it is typed on a command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wf_core.errors import BadInput
from wf_core.facts.run import RUN_OPTIONS
from wf_core.files import JSON_BYTES, read_text
from wf_core.names import LONGEST, repeated, switch_key
from wf_core.resolving.request_keys import differ
from wf_core.values import clipped, deeper_than, show

if TYPE_CHECKING:
    from wf_core.host import Host

DEEPEST = 64
Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    """Adds both options; the command gets ``settings`` and ``load_json``, to be given to `collect_settings`."""
    command = click.option(
        "--load-json",
        type=click.Path(path_type=Path),
        default=None,
        help="A JSON object of request keys; -s comes on top of it.",
    )(command)
    return click.option(
        "-s",
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="A request key; dots reach into options. May be repeated.",
    )(command)


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value``: the value is a JSON literal if it parses, else the text as it stands."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"-s {text}: expected KEY=VALUE")
    check_text("-s", text)
    return key.strip(), parse_value(value)


def check_text(option: str, text: str) -> str:
    """The text, or `BadInput` where it holds bytes that are no text in the terminal's encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{option} {text!a}: not valid text; write it in UTF-8") from None
    return text


def parse_value(text: str) -> Any:
    """A JSON literal if it parses (``NaN``, ``Infinity`` and 1e400 are none), else the text.

    Raises `BadInput` for a literal that is nested too deeply, or that names one key twice.
    """
    try:
        value = json.loads(
            text, parse_constant=lambda name: name, parse_float=_finite, object_pairs_hook=_once
        )
        check_text("-s", json.dumps(value, ensure_ascii=False))
        return _shallow(value)
    except RecursionError:
        raise BadInput(f"{text[:20]}...: nested too deeply") from None
    except ValueError:
        return text


def _shallow(value: Any) -> Any:
    """The value, if everything that follows can go through it; raises ``RecursionError`` like what cannot."""
    if deeper_than(value, DEEPEST):
        raise RecursionError
    return value


def _finite(text: str) -> float | str:
    return float(text) if math.isfinite(float(text)) else text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = repeated(name for name, _ in pairs)[0]
        raise BadInput(f"the key {clipped(twice, LONGEST)!r} is given twice in one JSON object")
    return found


def _only_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of the range of numbers")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Several ``key=value`` texts; the same key twice with different values is an error."""
    request: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for text in settings:
        key, value = parse_setting(text)
        before = spelled.setdefault(switch_key(key), key)
        if before in request and differ(request[before], value):
            raise BadInput(f"{key} is set twice: {show(request[before])} and {show(value)}")
        request[before] = value
    return request


def collect_settings(settings: Sequence[str], load_json: Path | None) -> dict[str, Any]:
    """The whole request: the file's keys, then those of ``-s``, which win."""
    own = parse_settings(settings)
    wins = {switch_key(key) for key in own}
    loaded = read_json_object(load_json) if load_json is not None else {}
    return {**{key: value for key, value in loaded.items() if switch_key(key) not in wins}, **own}


def model_defaults(host: Host, model: str) -> Mapping[str, Any]:
    """The call defaults that a registered model declares; empty for a directory or an id."""
    declared = host.model(model)
    return declared.defaults_dict() if declared is not None else {}


def call_defaults(host: Host, model: str) -> dict[str, Any]:
    """Those of them that are arguments of a run which conditions may look at."""
    return {key: value for key, value in model_defaults(host, model).items() if key in RUN_OPTIONS}


def with_defaults(call: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments that are known: those given, else the model's own; what neither gives is left out."""
    known = {key: defaults.get(key) if value is None else value for key, value in call.items()}
    return {key: value for key, value in known.items() if value is not None}


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `BadInput` with one line otherwise."""
    try:
        text = read_text(path, JSON_BYTES, pipes=True, encoding="utf-8-sig")
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_only_finite, object_pairs_hook=_once
        )
        check_text("a key or value", json.dumps(_shallow(value), ensure_ascii=False))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise BadInput(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path}: expected a JSON object of request keys")
    return value
