"""Presets: which ratios were measured on which checkpoint, and who borrows them for which other.

``presets.json`` holds the published ones; ``calibrated/*.json`` beside it, and any file that a request names, hold what
``wf calibrate magcache`` wrote. All of them are lists of the same record.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from wf_core.api import read_preset

SCHEMA = 1
FEATURE = "magcache"
TASKS = ("t2v", "i2v")
MOST_RATIOS = 10_000
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Preset:
    """One measurement. ``models`` are the ids of the checkpoints that it was made on, ``checkpoint`` the weights' hash.

    ``cond`` and ``uncond`` hold one ratio per solver step, the first 1.0. ``high_noise_steps`` of them belong to the
    first of two experts; 0 for a model of one. ``task`` is t2v or i2v where the ratios are of one alone, else "".
    """

    id: str
    models: tuple[str, ...]
    cond: tuple[float, ...]
    uncond: tuple[float, ...]
    high_noise_steps: int = 0
    task: str = ""
    threshold: float | None = None
    max_skip: int | None = None
    retention_ratio: float | None = None
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class Loan:
    """Somebody's use of a preset on a checkpoint that it was not measured on."""

    preset: str
    threshold: float
    by: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything shipped. ``calibrated`` maps a model id to a preset's id per task; ``borrowed`` to a loan."""

    presets: Mapping[str, Preset]
    calibrated: Mapping[str, Mapping[str, str]]
    borrowed: Mapping[str, Loan]


@cache
def catalogue() -> Catalogue:
    """The shipped presets, read once per process."""
    data = json.loads((HERE / "presets.json").read_text(encoding="utf-8"))
    presets = {record["id"]: _preset(record) for record in data["presets"]}
    for path in sorted((HERE / "calibrated").glob("*.json")):
        presets |= read_file(path)
    calibrated = {
        model: dict(row) if isinstance(row, Mapping) else dict.fromkeys(TASKS, row)
        for model, row in data["calibrated"].items()
    }
    borrowed = {
        model: Loan(loan["preset"], loan["threshold"], loan["by"]) for model, loan in data["borrowed"].items()
    }
    return Catalogue(presets, calibrated, borrowed)


def read_file(path: str | os.PathLike[str]) -> Mapping[str, Preset]:
    """The presets in a file written by ``wf calibrate magcache``, by id; raises ``BadInput`` with one line."""
    return read_preset(path, FEATURE, _by_id)


def _by_id(data: Mapping[str, Any]) -> Mapping[str, Preset]:
    found = {preset.id: preset for preset in map(_preset, data["presets"])}
    if not found:
        raise ValueError("it holds no preset")
    return found


def fault_of_ratios(cond: tuple[float, ...], uncond: tuple[float, ...], high_noise_steps: int) -> str:
    """Why two lists of ratios cannot be used, as the end of a sentence about them; "" when they can."""
    for name, ratios in (("ratios", cond), ("ratios_uncond", uncond)):
        if not 2 <= len(ratios) <= MOST_RATIOS:
            return f"{name} has {len(ratios)} numbers, not 2 to {MOST_RATIOS}: one per solver step"
        if not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
            return f"{name} holds a number that is not finite and above 0"
        if ratios[0] != 1.0:
            return f"{name} begins with {ratios[0]:g}, not with 1.0: the first step has none before it, put 1.0 there"
    if len(cond) != len(uncond):
        return (
            f"ratios has {len(cond)} numbers and ratios_uncond {len(uncond)}: one per solver step of one run"
        )
    if high_noise_steps and high_noise_steps >= len(cond):
        return f"high_noise_steps={high_noise_steps} leaves none of {len(cond)} ratios for the second expert"
    return ""


def _preset(record: Mapping[str, Any]) -> Preset:
    cond = tuple(float(ratio) for ratio in record["ratios_cond"])
    uncond = tuple(float(ratio) for ratio in record.get("ratios_uncond") or cond)
    high = int(record.get("high_noise_steps") or 0)
    if fault := fault_of_ratios(cond, uncond, high) or _fault_of_numbers(record, high):
        raise ValueError(f"in {record['id']} {fault}")
    return Preset(
        id=str(record["id"]),
        models=tuple(str(model).lower() for model in record["models"]),
        cond=cond,
        uncond=uncond,
        high_noise_steps=high,
        task=str(record.get("task") or ""),
        threshold=record.get("threshold"),
        max_skip=record.get("max_skip"),
        retention_ratio=record.get("retention_ratio"),
        checkpoint=str(record.get("checkpoint") or ""),
    )


def _fault_of_numbers(record: Mapping[str, Any], high_noise_steps: int) -> str:
    threshold, longest, share = (record.get(name) for name in ("threshold", "max_skip", "retention_ratio"))
    if threshold is not None and not (math.isfinite(threshold) and threshold >= 0):
        return f"threshold is {threshold!r}, not a finite number from 0 on"
    if longest is not None and not (isinstance(longest, int) and longest >= 1):
        return f"max_skip is {longest!r}, not a whole number of at least 1"
    if share is not None and not 0.0 <= share <= 1.0:
        return f"retention_ratio is {share!r}, not a share from 0 to 1"
    if high_noise_steps < 0:
        return f"high_noise_steps is {high_noise_steps}, below 0"
    if (record.get("task") or "") not in ("", *TASKS):
        return f"task is {record['task']!r}, not one of {', '.join(TASKS)}"
    return ""
