"""``wf calibrate magcache``: measure by how much the stack's residual shrinks from step to step.

Every step is computed. For each pair of consecutive solver steps of one expert and branch, and each sample of the
batch, ``mean over tokens of |r_i| / |r_(i-1)|`` is kept, with ``r = output - hidden_states`` and the norm over the
channels (arXiv 2506.09045, section 3). Beside it stand the standard deviation of that ratio over the tokens and
``1 - cos`` of the two residuals: the method assumes that both are small.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from wf_core.api import BadInput, Calibrator, checkpoint_of, model_id
from wf_plugin_cache_magcache.plan import HIGH_NOISE
from wf_plugin_cache_magcache.presets import FEATURE, SCHEMA
from wf_plugin_cache_magcache.rule import decide, first_free, split
from wf_plugin_cache_magcache.settings import DEFAULT_MAX_SKIP, DEFAULT_RETENTION_RATIO, IMAGE_PIPELINE

if TYPE_CHECKING:
    from wf_core.api import Facts, RunView, Step

GUARD = 1e-12
"""The least norm of a residual that is divided by."""

THRESHOLD_RULE = (
    "the least one that skips at least half of the steps that the rule decides about, on these ratios"
)
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Change:
    """One sample's residual against the step before.

    The mean over the tokens of the ratio of norms, its standard deviation over them, and the mean of ``1 - cos``.
    """

    ratio: float
    token_std: float
    turn: float


class MagCacheCalibrator(Calibrator):
    """Collects changes over any number of runs; ``result`` averages them."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.runs = 0
        self._facts = facts
        self._last: dict[tuple[str, str], tuple[int, torch.Tensor]] = {}
        self._changes: dict[tuple[str, int], list[Change]] = defaultdict(list)
        self._experts: dict[int, str] = {}
        self._total = 0

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._last.clear()
        self.runs += 1

    def end(self) -> None:
        super().end()
        self._last.clear()

    def held_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(residual for _, residual in self._last.values())

    def observe(self, step: Step, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        """Takes ``[B, L, D]`` twice; differences and norms are made in fp32, means over tokens in float64."""
        run = self._run
        if run is None or step.ambiguous:
            self._last.clear()
            return
        self._place(step, run.total(step))
        residual = (output.float() - hidden_states.float()).detach()
        before = self._last.get((step.expert, step.branch))
        if before is not None and before[0] == step.index - 1 and before[1].shape == residual.shape:
            self._changes[step.branch, step.index] += changes(residual, before[1])
        self._last[step.expert, step.branch] = (step.index, residual)

    def result(self) -> Mapping[str, Any]:
        """The preset file, with one preset. Raises ``BadInput`` where a step of a branch was not seen."""
        branches = sorted({branch for branch, _ in self._changes})
        if "cond" not in branches:
            raise BadInput("magcache: no two consecutive steps were seen; calibrate with at least 2 steps")
        model, checkpoint = model_id(self._facts), checkpoint_of(self._facts)
        measured = {branch: self._rows(branch) for branch in branches}
        high = self._high_noise_steps()
        ratios = {
            f"ratios_{branch}": [row["ratio"] for row in rows]
            for branch, rows in measured.items()
            if branch in ("cond", "uncond")
        }
        record = {
            "id": model or "calibrated",
            "models": [model] if model else [],
            "checkpoint": checkpoint,
            "num_inference_steps": self._total,
            **({"high_noise_steps": high} if high else {}),
            **({"task": task} if (task := self._task()) else {}),
            "threshold": recommended_threshold(ratios["ratios_cond"], high),
            "threshold_from": THRESHOLD_RULE,
            "max_skip": DEFAULT_MAX_SKIP,
            "retention_ratio": DEFAULT_RETENTION_RATIO,
            "sources": ["wf calibrate magcache"],
            **ratios,
            "measured": {
                "runs": self.runs,
                "samples": min(
                    row["samples"] for rows in measured.values() for row in rows if row["samples"]
                ),
                **{branch: _columns(rows) for branch, rows in measured.items()},
            },
        }
        return {
            "schema": SCHEMA,
            "feature": FEATURE,
            "model": model,
            "checkpoint": checkpoint,
            "presets": [record],
        }

    def _place(self, step: Step, total: int) -> None:
        """Every run has to be of the same steps."""
        if self._total and total != self._total:
            raise BadInput(f"magcache: one run has {self._total} steps and another {total}; use one number")
        if self._experts.setdefault(step.index, step.expert) != step.expert:
            raise BadInput(f"magcache: step {step.index} was run by two experts; use one schedule")
        self._total = total

    def _rows(self, branch: str) -> list[dict[str, Any]]:
        """One row per step. The first step of an expert has none of its own before it: 1.0."""
        rows = []
        for index in range(self._total):
            seen = self._changes.get((branch, index), [])
            if not seen and index and self._experts.get(index) == self._experts.get(index - 1):
                raise BadInput(
                    f"magcache: step {index} of {self._total} of branch {branch} was not seen after the one before; "
                    "calibrate with all steps computed and guidance on in all of them, or in none"
                )
            if not all(math.isfinite(change.ratio) and change.ratio > 0 for change in seen):
                raise BadInput(
                    f"magcache: at step {index} of {self._total} of branch {branch} the residual's change is no finite "
                    "number above 0, so that there is no ratio; calibrate with a call whose clips can be used"
                )
            rows.append(_row(seen))
        return rows

    def _high_noise_steps(self) -> int:
        """How many steps the first of two experts ran; 0 for one expert."""
        if len({*self._experts.values()}) < 2:
            return 0
        return sum(expert == HIGH_NOISE for expert in self._experts.values())

    def _task(self) -> str:
        name = str(self._facts.get("pipeline.class") or "")
        return "i2v" if IMAGE_PIPELINE in name else ""


def changes(residual: torch.Tensor, before: torch.Tensor) -> list[Change]:
    """The change of each sample, from residuals ``[B, L, D]`` in fp32. Reads back from the device once."""
    new, old = (torch.linalg.vector_norm(tensor, dim=-1).double() for tensor in (residual, before))
    ratio = new / old.clamp_min(GUARD)
    cosine = (residual * before).sum(dim=-1).double() / (new * old).clamp_min(GUARD)
    spread = ratio.std(dim=1, correction=0)
    table = torch.stack([ratio.mean(dim=1), spread, 1.0 - cosine.mean(dim=1)], dim=1).tolist()
    return [Change(*row) for row in table]


def recommended_threshold(ratios: list[float], high_noise_steps: int) -> float | None:
    """`THRESHOLD_RULE` with the default longest run and retention, to three digits after the point.

    None where no threshold up to 1 does, or where the rule has nothing to decide about.
    """
    parts = split(tuple(ratios), high_noise_steps) if high_noise_steps else (tuple(ratios),)
    starts = [first_free(len(part), DEFAULT_RETENTION_RATIO) for part in parts]
    free = sum(max(0, len(part) - start) for part, start in zip(parts, starts, strict=True))
    for thousandths in range(1, 1001):
        threshold = thousandths / 1000
        verdicts = (
            verdict
            for part, start in zip(parts, starts, strict=True)
            for verdict in decide(part, start, threshold, DEFAULT_MAX_SKIP)
        )
        if free and 2 * sum(not verdict.compute for verdict in verdicts) >= free:
            return threshold
    return None


def _row(seen: list[Change]) -> dict[str, Any]:
    if not seen:
        return {"ratio": 1.0, "spread": 0.0, "token_std": 0.0, "one_minus_cos": 0.0, "samples": 0}
    mean = math.fsum(change.ratio for change in seen) / len(seen)
    variance = math.fsum((change.ratio - mean) ** 2 for change in seen) / len(seen)
    return {
        "ratio": round(mean, DIGITS),
        "spread": round(math.sqrt(variance), DIGITS),
        "token_std": round(math.fsum(change.token_std for change in seen) / len(seen), DIGITS),
        "one_minus_cos": round(math.fsum(change.turn for change in seen) / len(seen), DIGITS),
        "samples": len(seen),
    }


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The measures of one branch, a number per step."""
    return {name: [row[name] for row in rows] for name in ("spread", "token_std", "one_minus_cos")}
