"""``-s key=value`` and ``--load-json FILE``: the request as it is typed on a command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wf_core.errors import BadInput
from wf_core.names import switch_key
from wf_core.request_keys import differ
from wf_core.values import show

if TYPE_CHECKING:
    from wf_core.host import Host

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
    return key.strip(), parse_value(value)


def parse_value(text: str) -> Any:
    """A JSON literal if it parses (``NaN`` and ``Infinity`` are no JSON), else the text."""
    try:
        return json.loads(text, parse_constant=lambda name: name)
    except ValueError:
        return text


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


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `BadInput` with one line otherwise."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BadInput(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path}: expected a JSON object of request keys")
    return value
