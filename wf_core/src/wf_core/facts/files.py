"""Facts about files that a request names: whether they are there, and what their safetensors header says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wf_core.errors import BadInput
from wf_core.facts import Fact, Facts
from wf_core.facts.safetensors_header import read_shapes
from wf_core.manifests.declarations import FileDecl


def file_facts(facts: Facts, named: Iterable[tuple[str, FileDecl, str]]) -> Facts:
    """``file.<feature>.<option>`` (whether the file exists) and the facts that its feature reads from it.

    Only beside a real checkpoint: for a profile the files are somewhere else, and stay unknown.
    """
    if not facts.get("model.here"):
        return Facts()
    found: dict[str, Fact] = {}
    for feature, declared, path in named:
        exists = os.path.exists(path)
        found[f"file.{feature}.{declared.option}"] = Fact(exists, path)
        if exists and declared.facts:
            found.update(_read(path, declared))
    return Facts(found)


def _read(path: str, declared: FileDecl) -> dict[str, Fact]:
    """The facts of the header; a tensor that is not there is known to be nothing."""
    try:
        shapes: dict[str, tuple[int, ...]] = read_shapes(Path(path))
    except BadInput:
        shapes = {}
    return {name: Fact(_length(shapes.get(tensor), axis), path) for name, tensor, axis in declared.facts}


def _length(shape: tuple[int, ...] | None, axis: int) -> Any:
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
