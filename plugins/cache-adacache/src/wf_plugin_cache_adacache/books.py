"""Codebooks: the published ones, and those that ``wf calibrate adacache`` measured on a checkpoint.

``codebooks.json`` holds the published ones, with the constants of the motion's weight; ``calibrated/*.json`` beside
it, and any path that a request names, hold calibrated ones. The files of ``calibrated/`` are known by their names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from wf_core.api import BadInput, read_preset
from wf_plugin_cache_adacache.rule import Codebook, Motion

FEATURE = "adacache"
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Preset:
    """A codebook measured on one checkpoint. ``block`` is the block that was watched, ``motion`` whether motion was
    weighed; ``models`` and ``checkpoint`` are the model's id (none, or one) and the hash of its weights.
    """

    name: str
    book: Codebook
    block: int
    motion: bool
    models: tuple[str, ...] = ()
    checkpoint: str = ""


@cache
def published() -> Mapping[str, Codebook]:
    """The shipped codebooks by name, read once per process."""
    return {
        name: Codebook(tuple(book["thresholds"]), tuple(book["rates"]), book["steps"])
        for name, book in _shipped()["codebooks"].items()
    }


@cache
def motion() -> Motion:
    """The published constants of the motion's weight."""
    return Motion(**_shipped()["motion"])


@cache
def calibrated() -> Mapping[str, Preset]:
    """The shipped presets by id, read once per process."""
    files = sorted((HERE / "calibrated").glob("*.json"))
    return {path.stem: in_file(path, path.stem) for path in files}


def named(name: str) -> Preset:
    """The preset that a request names, by its id or as a file; raises ``BadInput`` with one line."""
    if name in calibrated():
        return calibrated()[name]
    if not os.path.isfile(name):
        known = ", ".join(sorted(calibrated())) or "no id (none is shipped)"
        raise BadInput(f"adacache: preset {name!r} is neither a file nor one of {known}")
    return in_file(Path(name), name)


def in_file(path: Path, name: str) -> Preset:
    """A file written by ``wf calibrate adacache``; raises ``BadInput`` with one line."""
    return read_preset(path, FEATURE, partial(_preset, name))


def _preset(name: str, data: Mapping[str, Any]) -> Preset:
    block, weighed, steps = data["block"], data["motion"], data["num_inference_steps"]
    thresholds, rates = data["thresholds"], data["rates"]
    if type(thresholds) is not list or type(rates) is not list:
        raise ValueError("thresholds and rates are lists")
    if any(type(number) is not int or number < 0 for number in (block, steps, *rates)):
        raise ValueError("block, num_inference_steps and rates are whole numbers of 0 or more")
    if type(weighed) is not bool:
        raise ValueError("motion is true or false")
    book = Codebook(tuple(map(float, thresholds)), tuple(rates), steps)
    model = str(data.get("model") or "").lower()
    return Preset(name, book, block, weighed, (model,) if model else (), str(data.get("checkpoint") or ""))


@cache
def _shipped() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads((HERE / "codebooks.json").read_text(encoding="utf-8"))
    return data
