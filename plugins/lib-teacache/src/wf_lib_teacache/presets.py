"""Presets: which polynomial was fitted on which checkpoint, and who borrows it for which other.

``presets.json`` holds the published ones; ``calibrated/*.json`` beside it, and any path that a request names, hold
what ``wf calibrate teacache`` wrote. All of them are lists of the same record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from wf_core.api import read_preset

SCHEMA = 1
FEATURE = "teacache"
TIME_SIGNALS = ("e", "e0")
"""What depends on the timestep alone: a run's schedule is known before its first call."""
BLOCK = "block0"
"""The first block's modulated input, which depends on the latent: decided call by call."""
SIGNALS = (*TIME_SIGNALS, BLOCK)
MOST_COEFFICIENTS = 100
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Preset:
    """One fit. ``models`` are the ids of the checkpoints that it was fitted on, ``checkpoint`` their weights' hash.

    ``first`` and ``last`` count solver steps; ``domain`` is the range of distances seen in the fit and ``r2`` its
    coefficient of determination (both None where the source does not say).
    """

    id: str
    models: tuple[str, ...]
    signal: str
    coefficients: tuple[float, ...]
    first: int
    last: int
    threshold: float | None
    confidence: str
    sources: tuple[str, ...]
    checkpoint: str = ""
    r2: float | None = None
    domain: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Loan:
    """Somebody's use of a preset on a checkpoint that it was not fitted on."""

    preset: str
    threshold: float
    by: str


@dataclass(frozen=True, slots=True)
class PresetFile:
    """The presets of one calibrated checkpoint: one per signal, and the signal that fitted better."""

    presets: Mapping[str, Preset]
    signal: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything shipped. ``fitted`` and ``borrowed`` map a model id to a preset or loan per signal."""

    presets: Mapping[str, Preset]
    fitted: Mapping[str, Mapping[str, Preset]]
    borrowed: Mapping[str, Mapping[str, Loan]]


@cache
def catalogue() -> Catalogue:
    """The shipped presets, read once per process."""
    data = json.loads((HERE / "presets.json").read_text(encoding="utf-8"))
    presets = {record["id"]: _preset(record) for record in data["presets"]}
    for path in sorted((HERE / "calibrated").glob("*.json")):
        presets |= {preset.id: preset for preset in read_file(path).presets.values()}
    fitted = {
        model: {signal: presets[name] for signal, name in row.items()}
        for model, row in data["fitted"].items()
    }
    borrowed = {
        model: {signal: Loan(loan["preset"], loan["threshold"], loan["by"]) for signal, loan in row.items()}
        for model, row in data["borrowed"].items()
    }
    return Catalogue(presets, fitted, borrowed)


def read_file(path: Path) -> PresetFile:
    """A file written by ``wf calibrate teacache``; raises ``BadInput`` with one line."""
    return read_preset(path, FEATURE, _file)


def _file(data: Mapping[str, Any]) -> PresetFile:
    presets = {preset.signal: preset for preset in map(_preset, data["presets"])}
    if data["signal"] not in presets:
        raise ValueError(f"it has no preset for its own signal {data['signal']!r}")
    return PresetFile(presets, data["signal"])


def _preset(record: Mapping[str, Any]) -> Preset:
    fit = record.get("fit") or {}
    coefficients = tuple(float(number) for number in record["coefficients"])
    threshold = record["threshold"]
    if not 0 < len(coefficients) <= MOST_COEFFICIENTS or not all(map(math.isfinite, coefficients)):
        raise ValueError(f"the coefficients of {record['id']} are not a list of finite numbers")
    if min(int(record["first"]), int(record["last"])) < 0:
        raise ValueError(f"{record['id']} retains a number of steps below 0")
    if record["signal"] not in SIGNALS:
        raise ValueError(
            f"the signal of {record['id']} is {record['signal']!r}, not one of {', '.join(SIGNALS)}"
        )
    if threshold is not None and not (math.isfinite(threshold) and threshold > 0):
        raise ValueError(f"the threshold of {record['id']} is {threshold!r}, not a finite number above 0")
    return Preset(
        id=str(record["id"]),
        models=tuple(str(model).lower() for model in record["models"]),
        signal=record["signal"],
        coefficients=coefficients,
        first=int(record["first"]),
        last=int(record["last"]),
        threshold=threshold,
        confidence=str(record["confidence"]),
        sources=tuple(record["sources"]),
        checkpoint=str(record.get("checkpoint") or ""),
        r2=None if fit.get("r2") is None else _finite(record, fit["r2"]),
        domain=_domain(record, fit["domain"]) if "domain" in fit else None,
    )


def _domain(record: Mapping[str, Any], given: Any) -> tuple[float, float]:
    least, greatest = (_finite(record, number) for number in given)
    if least > greatest:
        raise ValueError(f"the domain of the fit of {record['id']} ends below its begin")
    return least, greatest


def _finite(record: Mapping[str, Any], given: Any) -> float:
    """A number that describes a fit: the report shows it."""
    if not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError(f"the fit of {record['id']} holds {given!r}, which is no finite number")
    return float(given)
