"""Load a pipeline from a checkpoint directory in diffusers layout."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from wf_core.errors import BadInput

CHUNK = 1 << 22
DTYPES = ("float32", "bfloat16", "float16")


def load_pipeline(directory: Path, dtype: str = "float32", device: str = "cpu") -> Any:
    """The pipeline that ``model_index.json`` names, on ``device``.

    Weights are loaded with ``dtype``, which keeps in fp32 what the model wants in fp32 (a later ``.to(dtype)``
    would round it). Raises ``BadInput`` with one line when the directory does not load.
    """
    import torch
    from diffusers import DiffusionPipeline

    if dtype not in DTYPES:
        raise BadInput(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    check_device(device)
    try:
        pipe = DiffusionPipeline.from_pretrained(
            str(directory), dtype=getattr(torch, dtype), local_files_only=True
        )
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"cannot load {directory}: {first}") from error
    return pipe if device == "cpu" else pipe.to(device)


def check_device(device: str) -> None:
    """Raise ``BadInput`` unless torch can use the device."""
    import torch

    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"device {device!r} is no device of torch; cpu, cuda and cuda:1 are") from error
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise BadInput(
            f"device {device!r}: torch sees {torch.cuda.device_count()} CUDA devices on this machine"
        )


def checkpoint_hash(directory: Path) -> str:
    """``sha256:`` and the digest of the denoisers' safetensors files, names and contents, in order of path."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("transformer*/*.safetensors")):
        digest.update(str(path.relative_to(directory)).encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
