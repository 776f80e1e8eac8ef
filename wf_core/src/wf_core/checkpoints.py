"""Load a pipeline from a checkpoint directory in diffusers layout."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from wf_core.errors import BadInput
from wf_core.files import open_file

CHUNK = 1 << 22
DTYPES = ("float32", "bfloat16", "float16")
_DEVICES = "cpu|mps|(cuda|xpu)(:[0-9]{1,3})?"


def load_pipeline(directory: Path, dtype: str = "float32", device: str = "cpu") -> Any:
    """The pipeline that ``model_index.json`` names, on ``device``.

    Weights are loaded with ``dtype``, which keeps in fp32 what the model wants in fp32 (a later ``.to(dtype)``
    would round it). Raises ``BadInput`` with one line when the directory does not load.
    """
    check_dtype(dtype)
    check_device(device)

    import torch
    from diffusers import DiffusionPipeline

    try:
        pipe = DiffusionPipeline.from_pretrained(
            str(directory), dtype=getattr(torch, dtype), local_files_only=True
        )
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"cannot load {directory}: {first}") from error
    return pipe if device == "cpu" else pipe.to(device)


def load_quietly(directory: Path, dtype: str, device: str) -> Any:
    """``load_pipeline`` for a program that owns its process: no bars while loading, and later a bar of the steps only
    on a terminal. Silences the loading of diffusers and transformers from then on.
    """
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    of_diffusers.disable_progress_bar()
    of_transformers.disable_progress_bar()
    pipe = load_pipeline(directory, dtype, device)
    pipe.set_progress_bar_config(disable=None)
    return pipe


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
