"""The schedule of one run: each expert's own ratios at its own steps, and the rule over them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wf_core.api import Decision, expert_start
from wf_plugin_cache_magcache.rule import Verdict, decide, first_free, interpolated, split

if TYPE_CHECKING:
    from wf_core.api import RunView
    from wf_plugin_cache_magcache.settings import Settings

HIGH_NOISE, LOW_NOISE = "transformer", "transformer_2"
UNKNOWN_EXPERTS = (
    "the ratios are of two experts, and which step runs which is not known; the step was computed"
)


@dataclass(frozen=True, slots=True)
class Segment:
    """The steps of one expert in a run, in order, with a ratio for each. ``measured`` is how many ratios there were.

    The rule decides from the ``start``-th of these steps on.
    """

    expert: str
    steps: tuple[int, ...]
    ratios: tuple[float, ...]
    measured: int
    start: int
    dense: bool = False


def segments(run: RunView, settings: Settings, branch: str) -> tuple[Segment, ...]:
    """The run's experts with their ratios; empty where ratios of two experts cannot be laid on the run's steps."""
    ratios = settings.uncond if branch == "uncond" else settings.cond
    experts = run.experts or ("",) * run.num_inference_steps
    steps = {name: tuple(i for i, e in enumerate(experts) if e == name) for name in dict.fromkeys(experts)}
    own = _by_expert(ratios, settings.high_noise_steps, {name: len(own) for name, own in steps.items()})
    two = len(own) > 1
    return tuple(
        Segment(
            name,
            indices,
            interpolated(own[name], len(indices)),
            len(own[name]),
            first_free(len(indices), settings.retention_ratio),
            dense=two and settings.dense_high_noise and name == HIGH_NOISE,
        )
        for name, indices in steps.items()
        if name in own
    )


def _by_expert(
    ratios: tuple[float, ...], high_noise_steps: int, steps: dict[str, int]
) -> dict[str, tuple[float, ...]]:
    """Ratios by expert. Where nobody has said how many are the first expert's, it gets its share of the run's steps."""
    high, total = high_noise_steps, sum(steps.values())
    if not high and LOW_NOISE in steps and len(steps) > 1:
        high = min(max(1, round(len(ratios) * steps.get(HIGH_NOISE, 0) / total)), len(ratios) - 1)
    if not high:
        return dict.fromkeys(steps, ratios)
    return dict(zip((HIGH_NOISE, LOW_NOISE), split(ratios, high), strict=True))


def decisions(
    run: RunView, settings: Settings, branch: str, forced: Collection[int] = ()
) -> tuple[Decision, ...]:
    """One decision per solver step of a run whose number of steps is known."""
    found = [Decision(True, "unknown-experts", fallback=UNKNOWN_EXPERTS)] * run.num_inference_steps
    for segment in segments(run, settings, branch):
        for index, verdict in zip(segment.steps, _verdicts(run, settings, segment, forced), strict=True):
            begins = expert_start(run, index) or ("expert-start" if index == segment.steps[0] else "")
            found[index] = Decision(verdict.compute, begins or verdict.reason, verdict.error)
    return tuple(found)


def _verdicts(
    run: RunView, settings: Settings, segment: Segment, forced: Collection[int]
) -> tuple[Verdict, ...]:
    if segment.dense:
        return (Verdict(True, "high-noise-expert"),) * len(segment.steps)
    ends = settings.force_last and segment.steps[-1] == run.num_inference_steps - 1
    return decide(
        segment.ratios,
        segment.start,
        settings.threshold,
        settings.max_skip,
        {place for place, index in enumerate(segment.steps) if index in forced},
        last=int(ends),
    )
