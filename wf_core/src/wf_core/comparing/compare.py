"""Run everything in one process and compare: the plain pipeline once, each plan in sessions on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from wf_core.comparing.measures import Measures, measure
from wf_core.comparing.outcome import Comparison, Row, Score, Side
from wf_core.comparing.perceptual import Optional, optional_measures
from wf_core.errors import BadInput, WfError

if TYPE_CHECKING:
    from wf_core.comparing.batches import Batch
    from wf_core.comparing.runs import Bench, Output
    from wf_core.kinds.scoring import PromptScorer
    from wf_core.resolving.plan import Plan

    Keep = Callable[[str, np.ndarray[Any, Any], np.ndarray[Any, Any]], None]
    """Called with a prompt and its plain and its accelerated clip ``[F, H, W, 3]`` in [0, 1], for each prompt."""


@attrs.define(eq=False)
class Tally:
    """What has been seen of one plan. ``error`` ends it: a plan that failed is not run again."""

    plan: Plan
    rows: list[Row] = attrs.field(factory=list)
    side: Side = attrs.field(factory=Side)
    report: Mapping[str, Any] | None = None
    error: WfError | None = None


def compare(
    bench: Bench, plan: Plan, batches: Sequence[Batch], *, scorer: PromptScorer | None, keep: Keep | None
) -> Comparison:
    """One plan against the plain run. Raises what the session raises (`Refused`, `PluginFault` ...)."""
    [found] = compare_all(bench, [plan], batches, scorer=scorer, keep=keep)
    if isinstance(found, WfError):
        raise found
    return found


def compare_all(
    bench: Bench,
    plans: Sequence[Plan],
    batches: Sequence[Batch],
    *,
    scorer: PromptScorer | None,
    keep: Keep | None = None,
) -> list[Comparison | WfError]:
    """Several plans against the same plain runs: for each its comparison, or why it could not be run to the end.

    The first plan runs before the plain pipeline on every other batch, and after it on the rest, so that neither has
    the warmer machine. At most one run's clips are kept beside the plain ones.
    """
    more = optional_measures()
    tallies = [Tally(plan) for plan in plans]
    plain = Side()
    for number, batch in enumerate(batches):
        ahead = _try(bench, tallies[0], batch) if number % 2 == 0 else None
        if all(tally.error for tally in tallies):
            break
        stock = bench.plain(batch, warm=number > 0)
        plain = plain.with_(stock)
        plain_scores = _scores(scorer, batch, stock)
        for tally in tallies:
            first = tally is tallies[0] and number % 2 == 0
            output = ahead if first else _try(bench, tally, batch)
            if output is not None:
                _add(tally, batch, stock, output, (plain_scores, _scores(scorer, batch, output)), more, keep)
    return [_result(tally, plain, more) for tally in tallies]


def _try(bench: Bench, tally: Tally, batch: Batch) -> Output | None:
    if tally.error is not None:
        return None
    try:
        output = bench.accelerated(tally.plan, batch)
    except WfError as error:
        tally.error = error
        return None
    if not np.isfinite(output.clips).all():
        tally.error = BadInput(
            "the accelerated run's clips hold values that are no numbers: nothing to compare"
        )
        return None
    return output


def _add(
    tally: Tally,
    batch: Batch,
    stock: Output,
    output: Output,
    scores: tuple[Sequence[Score], Sequence[Score]],
    more: Mapping[str, Optional],
    keep: Keep | None,
) -> None:
    tally.side = tally.side.with_(output)
    tally.report = tally.report or output.report

    def measured(number: int) -> Measures:
        pair = None
        if stock.latents is not None and output.latents is not None:
            pair = stock.latents[number], output.latents[number]
        return measure(stock.clips[number], output.clips[number], pair, more)

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(measured, range(len(batch.prompts))))
    for number, (prompt, measures) in enumerate(zip(batch.prompts, found, strict=True)):
        tally.rows.append(
            Row(prompt, batch.seed + number, measures, score=scores[1][number], plain_score=scores[0][number])
        )
        if keep is not None:
            keep(prompt, stock.clips[number], output.clips[number])


def _scores(scorer: PromptScorer | None, batch: Batch, output: Output) -> Sequence[Score]:
    if scorer is None:
        return [None] * len(batch.prompts)
    import torch

    return scorer(batch.prompts, torch.from_numpy(output.clips))


def _result(tally: Tally, plain: Side, more: Mapping[str, Optional]) -> Comparison | WfError:
    if tally.error is not None:
        return tally.error
    assert tally.report is not None
    missing = {
        name: optional.missing or "these clips are too small for it"
        for name, optional in more.items()
        if all(getattr(row.measures, name) is None for row in tally.rows)
    }
    return Comparison(tally.plan.request_dict(), tuple(tally.rows), plain, tally.side, tally.report, missing)
