"""What a comparison found, as one record: numbers per prompt, the worst and the mean of them, and both sides' costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from wf_core.comparing.measures import HIGHER_IS_BETTER, Measures
from wf_core.values import thaw

if TYPE_CHECKING:
    from wf_core.comparing.runs import Output

Score = Mapping[str, bool] | None


@attrs.frozen
class Row:
    """One prompt. A score says by kind what the clip shows, or is None where nothing can judge it."""

    prompt: str
    seed: int
    measures: Measures
    score: Score = None
    plain_score: Score = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        numbers = {name: tidy(value) for name, value in attrs.asdict(self.measures).items()}
        scores = {"prompt_score": thaw(self.score), "plain_prompt_score": thaw(self.plain_score)}
        return {"prompt": self.prompt, "seed": self.seed, **numbers, **scores}


@attrs.frozen
class Side:
    """What one of the two runs cost: one entry for each batch of prompts."""

    seconds: tuple[float, ...] = ()
    peaks: tuple[int | None, ...] = ()
    forwards: tuple[float, ...] = ()

    def with_(self, output: Output) -> Side:
        """This and one more run."""
        return Side(
            (*self.seconds, output.seconds),
            (*self.peaks, output.peak_bytes),
            (*self.forwards, output.forwards),
        )

    @property
    def total_seconds(self) -> float:
        """Wall time of all batches."""
        return sum(self.seconds)

    @property
    def peak_bytes(self) -> int | None:
        """The highest peak of device memory, None where none was measured."""
        return max((peak for peak in self.peaks if peak is not None), default=None)

    @property
    def steps(self) -> float:
        """Transformer forwards of one run, all branches: the mean over batches, which may decide differently."""
        return sum(self.forwards) / len(self.forwards)


@attrs.frozen(eq=False)
class Comparison:
    """A request against the plain run, over all prompts.

    ``report`` is the session's on the first batch; ``unavailable`` says why a measure is missing, by its name.
    """

    request: Mapping[str, Any]
    rows: tuple[Row, ...]
    plain: Side
    accelerated: Side
    report: Mapping[str, Any]
    unavailable: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def identical(self) -> bool:
        """Whether every clip is the plain run's, bit for bit."""
        return all(row.measures.identical for row in self.rows)

    @property
    def speedup(self) -> float:
        """Wall time of the plain runs over that of the accelerated ones."""
        return self.plain.total_seconds / self.accelerated.total_seconds

    @property
    def share(self) -> float:
        """The part of the plain run's transformer forwards that was computed."""
        return self.accelerated.steps / self.plain.steps

    def worst(self, name: str) -> float | None:
        """A measure at the prompt where it is worst; None where no prompt has a number."""
        return (min if HIGHER_IS_BETTER[name] else max)(self._values(name), default=None)

    def mean(self, name: str) -> float | None:
        """A measure's mean over the prompts that have a number."""
        return _mean(self._values(name))

    def worst_psnr(self) -> float:
        """PSNR of the worst prompt, infinite where all clips are identical: to sort by."""
        found = self.worst("psnr")
        return math.inf if found is None else found

    def to_json(self) -> dict[str, Any]:
        """Plain values: the numbers, the report and one row for each prompt."""
        return {
            **self.numbers(),
            "unavailable": dict(self.unavailable),
            "report": dict(self.report),
            "prompts": [row.to_json() for row in self.rows],
        }

    def numbers(self) -> dict[str, Any]:
        """The request and the numbers over all prompts."""
        named: dict[str, Any] = {}
        for name in HIGHER_IS_BETTER:
            named |= {name: tidy(self.worst(name)), f"{name}_mean": tidy(self.mean(name))}
        plain_scores, scores = ([getattr(row, key) for row in self.rows] for key in ("plain_score", "score"))
        return {
            "request": thaw(self.request),
            "steps_computed": tidy(self.accelerated.steps),
            "steps_total": tidy(self.plain.steps),
            "speedup": tidy(self.speedup),
            "seconds": tidy(self.accelerated.total_seconds),
            "plain_seconds": tidy(self.plain.total_seconds),
            "peak_bytes": self.accelerated.peak_bytes,
            "plain_peak_bytes": self.plain.peak_bytes,
            "identical": self.identical,
            **named,
            "prompt_score": tidy(overall(scores)),
            "prompt_scores": by_kind(scores),
            "plain_prompt_score": tidy(overall(plain_scores)),
            "plain_prompt_scores": by_kind(plain_scores),
        }

    def _values(self, name: str) -> list[float]:
        values = [getattr(row.measures, name) for row in self.rows]
        return [value for value in values if value is not None]


def overall(scores: Sequence[Score]) -> float | None:
    """Mean over the judged clips of the share of kinds that are right, in [0, 1]; None where no clip was judged."""
    return _mean([sum(score.values()) / len(score) for score in scores if score])


def by_kind(scores: Sequence[Score]) -> dict[str, float] | None:
    """The share of the judged clips that are right, for each kind."""
    judged = [score for score in scores if score]
    shares = {kind: _mean([score[kind] for score in judged]) for kind in (judged[0] if judged else ())}
    return {kind: tidy(share) for kind, share in shares.items()} or None


def tidy(number: Any) -> Any:
    """A float to six digits, whole where it is; anything else as it stands."""
    if not isinstance(number, float) or not math.isfinite(number):
        return number
    short = float(f"{number:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None
