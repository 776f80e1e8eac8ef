"""Load a pipeline from a checkpoint directory in diffusers layout."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from wf_core.broken_packages import BrokenPackage, culprit, surviving
from wf_core.errors import BadInput
from wf_core.files import JSON_BYTES, open_file, read_text

CHUNK = 1 << 22
DTYPES = ("float32", "bfloat16", "float16")
_DEVICES = "cpu|mps|(cuda|xpu)(:[0-9]{1,3})?"


def load_pipeline(directory: Path, dtype: str = "float32", device: str = "cpu") -> Any:
    """The pipeline that ``model_index.json`` names, on ``device``.

    Weights are loaded with ``dtype``, which keeps in fp32 what the model wants in fp32 (a later ``.to(dtype)``
    would round it). Raises ``BadInput`` with one line when the directory does not load, and ``BrokenPackage`` when
    diffusers cannot be imported beside another installed package.
    """
    check_dtype(dtype)
    check_device(device)

    import torch

    try:
        from diffusers import DiffusionPipeline

        pipe = DiffusionPipeline.from_pretrained(
            str(directory), dtype=getattr(torch, dtype), local_files_only=True
        )
    except (Exception, SystemExit) as error:
        package = culprit(error)
        if package:
            raise BrokenPackage(package, error) from error
        if isinstance(error, SystemExit):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"cannot load {directory}: {first}") from error
    return pipe if device == "cpu" else pipe.to(device)


def load_quietly(directory: Path, dtype: str, device: str) -> Any:
    """``load_pipeline`` for a program that owns its process: no bars while loading, and later a bar of the steps only
    on a terminal. Silences the loading of diffusers and transformers from then on.

    An installed package beside which diffusers cannot be imported counts as not installed from then on, and stderr
    gets one line about it.
    """
    surviving(lambda: import_classes(directory))
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    of_diffusers.disable_progress_bar()
    of_transformers.disable_progress_bar()
    pipe = load_pipeline(directory, dtype, device)
    pipe.set_progress_bar_config(disable=None)
    return pipe


def import_classes(directory: Path) -> None:
    """Import the classes of diffusers and transformers that ``model_index.json`` names, and nothing else.

    Raises what their import raises. Whatever else is wrong with the directory is left to its loading.
    """
    import diffusers
    import transformers

    libraries = {"diffusers": diffusers, "transformers": transformers}
    for library, name in _classes(directory):
        if library in libraries:
            getattr(libraries[library], name, None)


def _classes(directory: Path) -> list[tuple[str, str]]:
    try:
        index = json.loads(read_text(directory / "model_index.json", JSON_BYTES))
    except (OSError, ValueError, BadInput):
        return []
    if not isinstance(index, dict):
        return []
    pairs = [value for value in index.values() if isinstance(value, list) and len(value) == 2]
    named = [(one, two) for one, two in pairs if isinstance(one, str) and isinstance(two, str)]
    return [("diffusers", str(index.get("_class_name"))), *named]


def check_dtype(dtype: str) -> str:
    """The dtype, or ``BadInput``. Does not import torch."""
    if dtype not in DTYPES:
        raise BadInput(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    return dtype


def check_device_name(device: str) -> None:
    """Raise ``BadInput`` unless a clip can be made on a device of that name somewhere. Does not import torch."""
    if not re.fullmatch(_DEVICES, device):
        raise BadInput(
            f"device {device!r} is none that a clip is made on; cpu, cuda, cuda:1, mps and xpu are"
        )


def check_device(device: str) -> None:
    """Raise ``BadInput`` unless torch can use the device."""
    import torch

    check_device_name(device)
    kind, _, index = device.partition(":")
    counts = {"cuda": torch.cuda.device_count, "mps": torch.mps.device_count, "xpu": torch.xpu.device_count}
    count = counts[kind]() if kind in counts else 1
    if int(index or 0) >= count:
        raise BadInput(f"device {device!r}: torch sees {count} {kind.upper()} devices on this machine")


def checkpoint_hash(directory: Path) -> str:
    """``sha256:`` and the digest of the denoisers' safetensors files, names and contents, in order of path."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("transformer*/*.safetensors")):
        digest.update(os.fsencode(path.relative_to(directory)))
        try:
            with open_file(path) as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    return f"sha256:{digest.hexdigest()}"
