"""From a request to the numbers that the rule runs on, or a refusal that says what to give instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wf_core.api import BadInput, model_id, require_own, why_lent
from wf_plugin_cache_magcache.presets import FEATURE, Preset, catalogue, fault_of_ratios, read_file

if TYPE_CHECKING:
    from wf_core.api import Facts

DEFAULT_THRESHOLD = 0.12
"""The authors' own for Wan 2.1; used where ratios are given or a preset names no threshold of its own."""
DEFAULT_MAX_SKIP = 2
DEFAULT_RETENTION_RATIO = 0.2

IMAGE_PIPELINE = "ImageToVideo"
"""What the name of a pipeline class says of a run that starts from an image."""
SHORTENED_PIPELINE = "VideoToVideo"
"""What the name of a pipeline class says of a run that leaves out the first steps."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a session runs with. ``source`` names the ratios' origin; ``lent`` why they are uncalibrated here.

    ``high_noise_steps`` of the ratios belong to the first of two experts; 0 where nobody says. ``dense_high_noise``: of
    two experts the first is always computed. ``shortened``: the pipeline leaves out first steps of its schedule.
    """

    cond: tuple[float, ...]
    uncond: tuple[float, ...]
    threshold: float
    max_skip: int
    retention_ratio: float
    force_last: bool
    source: str
    high_noise_steps: int = 0
    dense_high_noise: bool = False
    shortened: bool = False
    lent: str = ""


def settle(options: Mapping[str, Any], facts: Facts) -> Settings:
    """The settings of a session; raises ``BadInput`` when the request does not lead to ratios that may be used."""
    named = options.get("preset")
    if options.get("ratios") is not None:
        if named is not None:
            raise BadInput("magcache: ratios and preset both give ratios; give one of them")
        return _settings(options, facts, _given(options), source="the given ratios")
    for name in ("ratios_uncond", "high_noise_steps"):
        if options.get(name) is not None:
            raise BadInput(
                f"magcache: {name} belongs to given ratios, and none are given; a preset has its own"
            )
    task = _task(options, facts)
    preset, threshold, lent = _named(str(named), task, facts) if named is not None else _known(task, facts)
    require_own(FEATURE, lent, facts)
    file = (
        f" of {os.path.basename(str(named))}"
        if named is not None and named not in catalogue().presets
        else ""
    )
    return _settings(options, facts, preset, threshold, source=f"preset {preset.id}{file}", lent=lent)


def _given(options: Mapping[str, Any]) -> Preset:
    """Given ratios, as the record that a preset is."""
    cond = tuple(float(ratio) for ratio in options["ratios"])
    other = options.get("ratios_uncond")
    uncond = cond if other is None else tuple(float(ratio) for ratio in other)
    high = int(options.get("high_noise_steps") or 0)
    if fault := fault_of_ratios(cond, uncond, high):
        raise BadInput(f"magcache: {fault}")
    return Preset("", (), cond, uncond, high)


def _settings(
    options: Mapping[str, Any],
    facts: Facts,
    preset: Preset,
    threshold: float | None = None,
    *,
    source: str,
    lent: str = "",
) -> Settings:
    def first(name: str, *others: Any) -> Any:
        return next(value for value in (options.get(name), *others) if value is not None)

    return Settings(
        cond=preset.cond,
        uncond=preset.uncond,
        threshold=float(first("threshold", threshold, preset.threshold, DEFAULT_THRESHOLD)),
        max_skip=int(first("max_skip", preset.max_skip, DEFAULT_MAX_SKIP)),
        retention_ratio=float(first("retention_ratio", preset.retention_ratio, DEFAULT_RETENTION_RATIO)),
        force_last=bool(options.get("force_last")),
        source=source,
        high_noise_steps=preset.high_noise_steps,
        dense_high_noise=(options.get("task") or preset.task or _task(options, facts)) == "i2v",
        shortened=SHORTENED_PIPELINE in str(facts.get("pipeline.class") or ""),
        lent=lent,
    )


def _task(options: Mapping[str, Any], facts: Facts) -> str:
    """Text or image to video: as asked for, else as the pipeline's class says."""
    starts_from_image = IMAGE_PIPELINE in str(facts.get("pipeline.class") or "")
    return str(options.get("task") or ("i2v" if starts_from_image else "t2v"))


def _known(task: str, facts: Facts) -> tuple[Preset, float | None, str]:
    """The shipped preset for a model id, its threshold there, and why it is lent. A measured one comes first."""
    shipped, model = catalogue(), model_id(facts)
    if model in shipped.calibrated:
        preset = shipped.presets[shipped.calibrated[model][task]]
        return preset, preset.threshold, why_lent(preset.id, preset.models, preset.checkpoint, facts)
    if model in shipped.borrowed:
        loan = shipped.borrowed[model]
        lent = (
            f"{model} has only the ratios of {loan.preset}, which {loan.by} borrows without measuring its own"
        )
        return shipped.presets[loan.preset], loan.threshold, lent
    raise BadInput(
        f"magcache: no ratios are known for model id {model!r}; give ratios (one per solver step, the first 1.0), or "
        "preset=FILE as written by `wf calibrate magcache`"
    )


def _named(name: str, task: str, facts: Facts) -> tuple[Preset, float | None, str]:
    """The preset that a request names, by its id or as a file; of a file with several, the one for the task."""
    preset = catalogue().presets.get(name)
    if preset is None:
        if not os.path.isfile(name):
            known = ", ".join(sorted(catalogue().presets))
            raise BadInput(f"magcache: preset {name!r} is neither a file nor one of {known}")
        found = list(read_file(name).values())
        preset = next((preset for preset in found if preset.task == task), found[0])
    return preset, preset.threshold, why_lent(preset.id, preset.models, preset.checkpoint, facts)
