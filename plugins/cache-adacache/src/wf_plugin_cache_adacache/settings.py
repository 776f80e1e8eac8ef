"""From a request to the numbers that the rule runs on, or a refusal that says what to give instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wf_core.api import BadInput, Window, require_own, why_lent
from wf_plugin_cache_adacache import books
from wf_plugin_cache_adacache.rule import Codebook, Motion

if TYPE_CHECKING:
    from wf_core.api import Facts
    from wf_plugin_cache_adacache.books import Preset

LAYERS = "model.layers"
PUBLISHED = "fast"
"""The codebook where none is named. The calibrated one of tiny-wan was measured to be no better (see the README)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a session runs with. ``source`` names the codebook's origin; ``lent`` why it is uncalibrated here.

    ``motion`` is None where motion is not weighed, ``threshold`` where the codebook alone gives the rate.
    """

    book: Codebook
    block: int
    motion: Motion | None
    threshold: float | None
    window: Window
    source: str
    lent: str = ""

    @property
    def needs_total(self) -> bool:
        """Whether the rule can only be run on a known number of steps."""
        return bool(self.window.last or self.book.steps or self.motion)


def settle(options: Mapping[str, Any], facts: Facts) -> Settings:
    """The settings of a session; raises ``BadInput`` when the request does not lead to a codebook that fits."""
    preset = _preset(options, facts)
    lent = ""
    if preset is not None:
        lent = why_lent(preset.name, preset.models, preset.checkpoint, facts)
        require_own(books.FEATURE, lent, facts)
        book, source = preset.book, f"preset {preset.name}"
    else:
        book, source = _book(options)
    threshold = options.get("threshold")
    return Settings(
        book=book,
        block=preset.block if preset is not None else watched_block(options, facts),
        motion=books.motion() if options.get("motion", True) else None,
        threshold=None if threshold is None else float(threshold),
        window=Window(int(options.get("first", 1)), int(options.get("last", 1))),
        source=source,
        lent=lent,
    )


def watched_block(options: Mapping[str, Any], facts: Facts) -> int:
    """The block that the request names, else the middle one."""
    layers, block = facts.get(LAYERS), options.get("block")
    if block is None:
        if not layers:
            raise BadInput(
                "adacache: the number of the model's blocks is not known; say with block=N which is watched"
            )
        return int(layers) // 2
    if layers and int(block) >= int(layers):
        raise BadInput(f"adacache: there is no block {block}, the model has {layers}, counted from 0")
    return int(block)


def _preset(options: Mapping[str, Any], facts: Facts) -> Preset | None:
    """The preset that the request names, if any."""
    named = options.get("preset")
    if named is None:
        return None
    given = [name for name in ("codebook", "thresholds") if options.get(name) is not None]
    if given:
        raise BadInput(f"adacache: {given[0]} and preset both name a codebook; give one of them")
    preset = books.named(str(named))
    misfit = _misfit(preset, options)
    layers = facts.get(LAYERS)
    if layers and preset.block >= int(layers):
        misfit = misfit or f"block {preset.block}, this model has {layers}"
    if misfit:
        raise BadInput(f"adacache: preset {preset.name} was measured with {misfit}")
    return preset


def _misfit(preset: Preset, options: Mapping[str, Any]) -> str:
    """How a preset was measured where the request says otherwise; "" where it does not."""
    block = options.get("block")
    if block is not None and block != preset.block:
        return f"block={preset.block}, the request says {block}"
    if bool(options.get("motion", True)) != preset.motion:
        return f"motion={str(preset.motion).lower()}, the request says otherwise"
    return ""


def _book(options: Mapping[str, Any]) -> tuple[Codebook, str]:
    thresholds, rates = options.get("thresholds"), options.get("rates")
    if thresholds is None and rates is None:
        name = options.get("codebook") or PUBLISHED
        return books.published()[name], f"codebook {name}"
    try:
        book = Codebook(tuple(map(float, thresholds or ())), tuple(map(int, rates or ())))
    except ValueError as error:
        raise BadInput(f"adacache: {error}") from None
    return book, "the given thresholds and rates"
