"""From a request to the numbers that the rule runs on, or a refusal that says what to give instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wf_core.api import BadInput, model_id, require_own, why_lent
from wf_lib_teacache.presets import BLOCK, SIGNALS, TIME_SIGNALS, Preset, catalogue, read_file

if TYPE_CHECKING:
    from wf_core.api import Facts

DEFAULT_THRESHOLD = 0.26
"""Used where coefficients are given or a preset names no threshold of its own."""

RETAINED = {"e": (1, 1), "e0": (5, 0), BLOCK: (1, 1)}
"""Solver steps always computed at the start and the end, by signal, as the authors' scripts have them."""

BY_BLOCK = ("hunyuan", "cosmos")
"""Families whose published fits are on the first block's modulated input; the others are judged by their time signals.

Their time embedding is not the whole of what modulates a block: pooled text and guidance, or each block's own layers.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a session runs with. ``source`` names the polynomial's origin; ``lent`` why it is uncalibrated here."""

    coefficients: tuple[float, ...]
    threshold: float
    signal: str
    first: int
    last: int
    max_skip: int | None
    source: str
    lent: str = ""
    confidence: str = ""
    r2: float | None = None
    domain: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class _Choice:
    """A preset for this model, the threshold that goes with it, and why it is uncalibrated ("" when it is not)."""

    preset: Preset
    threshold: float | None
    lent: str = ""
    file: str = ""


def settle(options: Mapping[str, Any], facts: Facts) -> Settings:
    """The settings of a session; raises ``BadInput`` when the request does not lead to a polynomial that fits."""
    model, signals = model_id(facts), signals_for(facts)
    wanted = options.get("signal")
    if wanted is not None and wanted not in signals:
        raise BadInput(
            f"teacache: signal {wanted} is not what this model family is judged by, which is {' or '.join(signals)}; "
            "leave signal out"
        )
    coefficients, named = options.get("coefficients"), options.get("preset")
    if coefficients is not None and named is not None:
        raise BadInput("teacache: coefficients and preset both name a polynomial; give one of them")
    if coefficients is not None:
        return _own(tuple(float(number) for number in coefficients), wanted or signals[0], options)
    choice = _named(str(named), wanted, facts) if named is not None else _known(model, wanted, facts)
    if choice.preset.signal not in signals:
        raise BadInput(
            f"teacache: preset {choice.preset.id} was fitted on signal {choice.preset.signal}, and this model family "
            f"is judged by {' or '.join(signals)}: give coefficients fitted on that"
        )
    require_own("teacache", choice.lent, facts)
    return _from_preset(choice, options)


def signals_for(facts: Facts) -> tuple[str, ...]:
    """The signals that the model's family is judged by, the one taken by default first."""
    return (BLOCK,) if facts.get("model.family") in BY_BLOCK else TIME_SIGNALS


def _own(coefficients: tuple[float, ...], signal: str, options: Mapping[str, Any]) -> Settings:
    if not coefficients:
        raise BadInput("teacache: coefficients is an empty list; give a polynomial, the highest degree first")
    first, last = RETAINED[signal]
    return _settings(
        options, coefficients, DEFAULT_THRESHOLD, signal, first, last, source="the given coefficients"
    )


def _from_preset(choice: _Choice, options: Mapping[str, Any]) -> Settings:
    preset = choice.preset
    return _settings(
        options,
        preset.coefficients,
        choice.threshold or DEFAULT_THRESHOLD,
        preset.signal,
        preset.first,
        preset.last,
        source=f"preset {preset.id}" + (f" of {choice.file}" if choice.file else ""),
        lent=choice.lent,
        confidence=preset.confidence,
        r2=preset.r2,
        domain=preset.domain,
    )


def _settings(
    options: Mapping[str, Any],
    coefficients: tuple[float, ...],
    threshold: float,
    signal: str,
    first: int,
    last: int,
    **origin: Any,
) -> Settings:
    given = {name: options[name] for name in ("threshold", "first", "last") if options.get(name) is not None}
    return Settings(
        coefficients=coefficients,
        threshold=float(given.get("threshold", threshold)),
        signal=signal,
        first=int(given.get("first", first)),
        last=int(given.get("last", last)),
        max_skip=options.get("max_skip"),
        **origin,
    )


def _known(model: str, wanted: str | None, facts: Facts) -> _Choice:
    """The shipped preset for a model id: one fitted on it before one borrowed, in the order of the signals."""
    shipped = catalogue()
    fitted, borrowed = shipped.fitted.get(model, {}), shipped.borrowed.get(model, {})
    if not fitted and not borrowed:
        raise BadInput(
            f"teacache: no preset is known for model id {model!r}; give coefficients (the highest degree first), or "
            "preset=FILE as written by `wf calibrate teacache`"
        )
    order = (wanted,) if wanted else SIGNALS
    for signal in order:
        if signal in fitted:
            preset = fitted[signal]
            return _Choice(
                preset, preset.threshold, why_lent(preset.id, preset.models, preset.checkpoint, facts)
            )
    for signal in order:
        if signal in borrowed:
            loan = borrowed[signal]
            lent = f"{model} has only the numbers of {loan.preset}, which {loan.by} borrows without a fit of its own"
            return _Choice(shipped.presets[loan.preset], loan.threshold, lent)
    there = ", ".join(sorted({*fitted, *borrowed}))
    raise BadInput(f"teacache: {model} has no preset for signal {wanted}, only for {there}; leave signal out")


def _named(name: str, wanted: str | None, facts: Facts) -> _Choice:
    """The preset that a request names, by its id or as a file."""
    preset, file = catalogue().presets.get(name), ""
    if preset is None:
        preset, file = _in_file(name, wanted), Path(name).name
    if wanted is not None and preset.signal != wanted:
        raise BadInput(
            f"teacache: preset {preset.id} was fitted on signal {preset.signal} and says nothing about {wanted}; "
            "leave signal out"
        )
    lent = why_lent(preset.id, preset.models, preset.checkpoint, facts)
    return _Choice(preset, preset.threshold, lent, file)


def _in_file(name: str, wanted: str | None) -> Preset:
    path = Path(name)
    if not os.path.isfile(path):
        known = ", ".join(sorted(catalogue().presets))
        raise BadInput(f"teacache: preset {name!r} is neither a file nor one of {known}")
    file = read_file(path)
    preset = file.presets.get(wanted or file.signal)
    if preset is None:
        raise BadInput(f"teacache: preset file {name} has no fit for signal {wanted}, only for {file.signal}")
    return preset
