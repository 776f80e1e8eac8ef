"""Caches of other projects, as short reference functions: numbers in, decisions or values out.

None of these algorithms is offered. The functions are written from the published formulas, each with its source, so
that what our pages say of other caches can be checked. Steps count from 0; distances are relative L1 changes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

import torch

from wf_core.api import Decision, Differences, Facts, RunView, StaticSchedule, Window, relative_l1, scheduled
from wf_lib_teacache.rule import schedule as accumulated
from wf_plugin_cache_blocks.rule import Rule

IDENTITY = (1.0, 0.0)
"""The polynomial p(d) = d: a change is what was measured."""
ALL_FREE = Window()


def run_of(steps: int | Sequence[float]) -> RunView:
    """A run of these timesteps, or of this many steps whose timesteps do not matter."""
    timesteps = () if isinstance(steps, int) else tuple(steps)
    total = steps if isinstance(steps, int) else len(timesteps)
    return RunView(total, timesteps, (), 2, Facts(), lambda expert, at: {}, lambda: None)


def computed(decisions: Iterable[Decision]) -> list[int]:
    """The steps that are computed."""
    return [index for index, decision in enumerate(decisions) if decision.compute]


def computed_where(
    steps: int | Sequence[float], rule: Callable[[int], bool], window: Window = ALL_FREE
) -> list[int]:
    """The computed steps of a cache in which each step stands for itself."""
    return computed(scheduled(run_of(steps), window, lambda index: "rule" if rule(index) else ""))


def changes(values: Sequence[float]) -> list[float]:
    """The change of each value from the one before, measured as the core measures hidden states; 0.0 for the first."""
    column = torch.tensor(values)[:, None]
    return [0.0, *relative_l1(column[1:], column[:-1]).tolist()]


# --- every step by itself -------------------------------------------------------------------------------------------


def pab(timesteps: Sequence[float], every: int, low: float, high: float) -> list[int]:
    """Pyramid Attention Broadcast (arXiv 2408.12588) with the window of diffusers, open at both ends."""
    return computed_where(timesteps, lambda i: not low < timesteps[i] < high or i % every == 0)


def fora(total: int, every: int) -> list[int]:
    """FORA (arXiv 2407.01425), order 0: every ``every``-th step."""
    return computed_where(total, lambda i: i % every == 0)


def fora_upstream(total: int, every: int) -> list[int]:
    """FORA's own code counts steps down, so that the last step is always computed."""
    return computed_where(total, lambda i: (total - 1 - i) % every == 0)


def deepcache(total: int, start: int, end: int, every: int) -> list[int]:
    """The static schedule of AngelSlim for HunyuanVideo-1.5: gaps between ``start`` and ``end`` only."""
    return computed_where(total, lambda i: (i - start) % every == 0, Window(start, total - end))


def taylor_diffusers(total: int, interval: int, before: int, after: int | None = None) -> list[int]:
    """diffusers' TaylorSeer hook: the interval counts from the step after the first ``before``."""
    last = 0 if after is None else total - after
    return computed_where(total, lambda i: (i - before - 1) % interval == 0, Window(before, last))


def fastercache_uncond(timesteps: Sequence[float], low: float, high: float, every: int) -> list[int]:
    """FasterCache (arXiv 2410.19355): the steps at which the unconditional half is computed."""
    return computed_where(timesteps, lambda i: not low < timesteps[i] < high or i % every == 0)


def fastercache_attention_skipped(
    timesteps: Sequence[float], uncond: Iterable[int], low: float, high: float, every: int
) -> list[int]:
    """FasterCache: the steps that skip attention, of those that leave the unconditional half out."""
    alone = set(range(len(timesteps))) - set(uncond)
    return [i for i in sorted(alone) if low < timesteps[i] < high and i % every != 0]


# --- masks ----------------------------------------------------------------------------------------------------------

SCM_28 = {
    "slow": (8, 1, 3, 2, 3, 2, 2, 2, 1, 3, 1),
    "medium": (6, 1, 2, 3, 2, 3, 2, 3, 2, 3, 1),
    "fast": (6, 1, 1, 3, 1, 4, 1, 5, 1, 4, 1),
    "ultra": (4, 2, 1, 5, 1, 6, 1, 7, 1),
}
"""cache-dit's masks for 28 steps: the lengths of runs, computed and cached in turn."""

SCM_SHORT = {
    4: dict.fromkeys(SCM_28, (2, 1, 1)),
    6: dict.fromkeys(SCM_28, (3, 2, 1)),
    8: {"slow": (5, 1, 2), "medium": (4, 1, 1, 1, 1), "fast": (3, 1, 1, 2, 1), "ultra": (2, 2, 1, 2, 1)},
    9: {"slow": (5, 1, 3), "medium": (5, 1, 1, 1, 1), "fast": (4, 1, 1, 2, 1), "ultra": (3, 2, 1, 2, 1)},
    12: {
        "slow": (4, 1, 2, 1, 4),
        "medium": (4, 1, 2, 1, 1, 2, 1),
        "fast": (3, 1, 1, 2, 1, 2, 2),
        "ultra": (2, 1, 1, 2, 1, 3, 2),
    },
}
"""The same for fewer than 16 steps, where cache-dit has a table of its own for each number of steps."""


def scm(policy: str, total: int) -> str:
    """cache-dit's step computation mask, 1 for a computed step. ``total`` is 16 or more, or one of `SCM_SHORT`."""
    if total in SCM_SHORT:
        return _mask(SCM_SHORT[total][policy], total)
    base = SCM_28[policy]
    return _mask(_grown(base, total) if total > 28 else _shrunk(base, total), total)


def _mask(runs: Sequence[int], total: int) -> str:
    steps = "".join("10"[index % 2] * length for index, length in enumerate(runs))
    return steps[: total - 1] + "1"


def _grown(base: Sequence[int], total: int) -> list[int]:
    """Every run grows by half of its share of ``total``, from the front and again, until there are enough steps."""
    runs = list(base)
    while sum(runs) < total:
        for index, length in enumerate(base):
            runs[index] += max(int(length * total / 28 * 0.5), 1)
            if sum(runs) >= total:
                break
    return runs


def _shrunk(base: Sequence[int], total: int) -> list[int]:
    """The last computed and the last cached run lose a step in turn; runs of which nothing is left merge the others.

    Which of the two loses the first step is not known for an odd number of steps; for an even one it is the same.
    """
    runs = list(base)
    for turn in range(28 - total):
        kind = turn % 2
        last = max(index for index in range(kind, len(runs), 2) if runs[index])
        runs[last] -= 1
    return runs


def longest_gap(mask: str) -> int:
    """The most steps in a row that a mask does not compute."""
    return max(map(len, mask.split("1")))


# --- a measured change against a threshold --------------------------------------------------------------------------


def accumulated_change(
    signal: Sequence[float], threshold: float, window: Window, max_skip: int | None = None
) -> list[int]:
    """Computed where the changes since the last computed step add up to ``threshold``.

    TeaCache's rule without its polynomial: DiCache (arXiv 2508.17356) with the output of its first blocks as the
    signal, and WorldFoundry's AdaptiveResidualCache.
    """
    decisions = accumulated(
        changes(signal), IDENTITY, threshold, window.first, window.last, max_skip=max_skip
    )
    return [index for index, decision in enumerate(decisions) if decision.compute]


def dbcache(
    residuals: Sequence[float],
    threshold: float,
    warmup: int,
    max_continuous: int | None = None,
    max_cached: int | None = None,
) -> list[int]:
    """cache-dit's DBCache: the first blocks' residual against that of the last computed step.

    ``max_cached`` limits all cached steps of a run, ``max_continuous`` those in a row (cache-dit counts the latter
    otherwise: see the recommended meaning in the vector). Decimals are compared exactly, so that a tie is a tie.
    """
    rule, window, reference, found = Rule(threshold, max_continuous), Window(warmup), Fraction(1), []
    for index, residual in enumerate(Fraction(str(value)) for value in residuals):
        free = not window.reason(index, len(residuals))
        full = max_cached is not None and index - len(found) >= max_cached
        change = float(abs(residual - reference) / abs(reference))
        compute = not free or full or rule.judge(change).compute
        rule.took(compute)
        if compute:
            reference = residual
            found.append(index)
    return found


def lagged_first_block(residuals: Sequence[float], threshold: float) -> list[int]:
    """xDiT's first-block cache: the reference is refreshed after a step whose previous step was computed."""
    rule, reference, found = Rule(threshold), residuals[0], [0]
    for index, residual in enumerate(residuals[1:], start=1):
        change = abs(residual - reference) / abs(reference)
        if index - 1 in found:
            reference = residual
        if rule.judge(change).compute:
            found.append(index)
    return found


def speca_threshold(step: int, total: int, base: float, decay: float) -> float:
    """SpeCa (arXiv 2509.11628): the error up to which a drafted step is accepted."""
    return float(max(base * decay ** (step / total), 0.1))


def worldcache_threshold(threshold: float, step: int, total: int, alpha: float, motion: float) -> float:
    """WorldCache (arXiv 2603.22286): the threshold grows with the step and falls with the latent's motion."""
    return threshold * (1 + 4 * step / total) / (1 + alpha * motion)


# --- what a skipped step gives --------------------------------------------------------------------------------------


def clipped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def dicache_gamma(older: float, newer: float, now: float, high: float = 2.0) -> float:
    """DiCache: how far along the line through the two newest probes the present probe is."""
    return clipped(abs(now - older) / abs(newer - older), 1.0, high)


def worldcache_gamma(previous: Sequence[float], current: Sequence[float]) -> float:
    """WorldCache: the present change, projected on the previous one."""
    product = math.fsum(a * b for a, b in zip(current, previous, strict=True))
    return clipped(product / math.fsum(b * b for b in previous), 0.2, 1.8)


def on_the_line(older: float, newer: float, gamma: float) -> float:
    """DiCache and WorldCache: the residual at ``gamma`` of the way from the older to the newer one, or past it."""
    return older + gamma * (newer - older)


def hermite(order: int, z: float) -> float:
    """The physicists' Hermite polynomial: H0 = 1, H1 = 2z, H(n+1) = 2z H(n) - 2n H(n-1)."""
    older, newest = 0.0, 1.0
    for n in range(order):
        older, newest = newest, 2 * z * newest - 2 * n * older
    return newest


def hicache(factors: Sequence[float], distance: float, sigma: float = 0.5) -> float:
    """HiCache (arXiv 2508.16984): the powers of TaylorSeer replaced by scaled Hermite polynomials."""
    newest, *higher = factors
    terms = (
        sigma**k / math.factorial(k) * hermite(k, sigma * distance) * factor
        for k, factor in enumerate(higher, start=1)
    )
    return newest + math.fsum(terms)


class TwoNewest:
    """FasterCache's attention outputs: the two newest, of which what was extrapolated is one."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._kept: deque[float] = deque(maxlen=2)

    def computed(self, output: float) -> None:
        self._kept.append(output)

    def skipped(self) -> float:
        older, newest = self._kept
        self._kept.append(newest + (newest - older) * self._weight)
        return self._kept[-1]


def fastercache_uncond_from(
    cond: torch.Tensor, older_cond: torch.Tensor, older_uncond: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """FasterCache: the unconditional output ``[H, W]`` from the conditional one and the kept difference of both.

    The difference is split at a radius of a fifth of the shorter side in the frequency plane, and its two parts are
    weighted by ``low`` and ``high``.
    """
    height, width = cond.shape
    rows, columns = torch.meshgrid(
        torch.arange(height) - height // 2, torch.arange(width) - width // 2, indexing="ij"
    )
    inside = rows**2 + columns**2 <= (min(height, width) // 5) ** 2
    difference = _spectrum(older_uncond) - _spectrum(older_cond)
    weighted = difference * torch.where(inside, low, high)
    return torch.fft.ifft2(torch.fft.ifftshift(_spectrum(cond) + weighted)).real


def _spectrum(plane: torch.Tensor) -> torch.Tensor:
    return torch.fft.fftshift(torch.fft.fft2(plane))


def foca(dense: Mapping[int, float], total: int) -> list[float]:
    """cache-dit's FoCa of one sequence whose values at the steps ``dense`` are given.

    The slope of the computed values is their difference, whatever the number of steps between them.
    """
    full = full_before = kept = kept_before = dense[0]
    at, series = 0, []
    for step in range(total):
        if step in dense:
            value, at = dense[step], step
            full_before, full = full, value
        else:
            ahead = step - at
            value = full + min(ahead, 3) / 2 * ((full - full_before) + (kept - kept_before))
            if ahead > 3:
                value = 3 / ahead * value + (1 - 3 / ahead) * full
        kept_before, kept = kept, value
        series.append(value)
    return series


def taylor_cachedit(dense: Mapping[int, float], total: int, order: int = 1) -> list[float]:
    """cache-dit's TaylorSeer of one sequence: at the steps 0 and 1 no difference is taken."""
    samples, series = Differences(order), []
    for step in range(total):
        if step in dense:
            if step <= 1:
                samples.clear()
            samples.add(step, torch.tensor(dense[step], dtype=torch.float64))
        series.append(float(samples.continued(step)))
    return series


def replayed(
    output: Callable[[int], float], total: int, skip: Iterable[int], delta_scale: float
) -> list[float]:
    """WorldFoundry's FixedStepCache: the last computed output again, and ``delta_scale`` of its last change."""
    skipped, run = set(skip), run_of(total)
    plan = StaticSchedule.of(
        run, lambda forced: scheduled(run, Window(1, 1), lambda i: "" if i in skipped else "kept", forced)
    )
    values = []
    for step, anchor in enumerate(plan.anchors()):
        before = max((i for i in computed(plan.decisions) if i < anchor), default=anchor)
        scale = delta_scale if anchor != step else 0.0
        values.append(output(anchor) + scale * (output(anchor) - output(before)))
    return values


# --- facts of models and of several ranks ---------------------------------------------------------------------------


def high_noise_steps(total: int, shift: float, boundary: float, first: float, last: float) -> int:
    """Wan2.2: the steps whose timestep is not below the boundary, on a shifted line from ``first`` to ``last``."""
    line = (first + (last - first) * index / total for index in range(total))
    return sum(1000 * shift * s / (1 + (shift - 1) * s) >= 1000 * boundary for s in line)


def over_ranks(shards: Sequence[tuple[float, float]]) -> float:
    """Sequence parallel: numerators and denominators are summed over the ranks, and divided once."""
    return math.fsum(numerator for numerator, _ in shards) / math.fsum(
        denominator for _, denominator in shards
    )
