"""Presets: numbers that were measured on one checkpoint, in files as ``wf calibrate`` writes them.

A preset belongs to the checkpoint that it was measured on. For any other it is *lent*, and refused unless the request
says ``allow_uncalibrated``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wf_core.errors import BadInput

if TYPE_CHECKING:
    from wf_core.facts import Facts

SCHEMA = 1
MOST_BYTES = 1 << 20
MODEL_ID = "model.id"
CHECKPOINT_HASH = "model.checkpoint_hash"
DIRECTORY = "model.directory"
ALLOW = "request.allow_uncalibrated"

Built = TypeVar("Built")


def read_preset(
    path: str | os.PathLike[str], feature: str, build: Callable[[Mapping[str, Any]], Built]
) -> Built:
    """What ``build`` makes of the object in a preset file of a feature. Raises ``BadInput`` with one line.

    A file has at most 1 MiB. What is inside, beside ``feature`` and ``schema``, is the feature's own: ``build`` may
    fail over a key that is not there, a value of another type, or with a ``ValueError`` that says what is wrong.
    """
    data = _object_in(path, feature)
    try:
        return build(data)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise BadInput(f"preset file {path} cannot be used: {what}") from None


def _object_in(path: str | os.PathLike[str], feature: str) -> Mapping[str, Any]:
    if not os.path.isfile(path):
        raise BadInput(f"preset file {path} is not there, or no regular file")
    try:
        if os.path.getsize(path) > MOST_BYTES:
            raise BadInput(f"preset file {path} has more than {MOST_BYTES >> 20} MiB")
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"preset file {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"preset file {path} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("feature") != feature or data.get("schema") != SCHEMA:
        raise BadInput(
            f'preset file {path} is not a {feature} preset: it needs "feature": "{feature}" and "schema": {SCHEMA}'
        )
    return data


def model_id(facts: Facts) -> str:
    """The model's id in lower case, "" where it is not known."""
    return str(facts.get(MODEL_ID) or "").lower()


def checkpoint_of(facts: Facts) -> str:
    """The hash of the checkpoint's weights, "" where it is not known.

    Read from the files where the model was loaded from a directory: once per process while they stay as they are.
    Raises ``BadInput`` where one of them cannot be read.
    """
    known, directory = facts.get(CHECKPOINT_HASH), facts.get(DIRECTORY)
    if known or not directory:
        return str(known or "")
    files = sorted(Path(directory).glob("transformer*/*.safetensors"))
    if not files:
        return ""
    return _hash(str(directory), tuple((path.name, *_stamp(path)) for path in files))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=64)
def _hash(directory: str, files: tuple[tuple[str, int, int], ...]) -> str:
    from wf_core.checkpoints import checkpoint_hash

    return checkpoint_hash(Path(directory))


def why_lent(name: str, models: Collection[str], checkpoint: str, facts: Facts) -> str:
    """Why the preset ``name`` is not this checkpoint's own; "" when it is, as far as the facts tell.

    ``models`` are the ids of the models that it was measured on, ``checkpoint`` the hash of their weights ("" where
    its source does not say).
    """
    model = model_id(facts)
    if model not in models:
        measured_on = ", ".join(models) or "an unnamed checkpoint"
        return f"preset {name} was measured on {measured_on}, this model is {model or 'of unknown id'}"
    found = checkpoint_of(facts) if checkpoint else ""
    if checkpoint and found and found != checkpoint:
        return f"preset {name} was measured on other weights ({checkpoint[:12]}, these are {found[:12]})"
    return ""


def require_own(feature: str, lent: str, facts: Facts) -> None:
    """Raise ``BadInput`` for a lent preset that the request did not allow."""
    if lent and facts.get(ALLOW) is not True:
        raise BadInput(
            f"{feature}: {lent}; say allow_uncalibrated=true to use it all the same, or run "
            f"`wf calibrate {feature}` on this checkpoint and give the file as preset"
        )
