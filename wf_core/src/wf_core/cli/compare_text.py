"""A comparison, or a sweep, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from wf_core.cli.output import print_pairs, print_table
from wf_core.comparing.page import NUMBERS, OF_A_PROMPT, shown
from wf_core.resolving.plan import shown_request

if TYPE_CHECKING:
    from wf_core.comparing.outcome import Comparison
    from wf_core.comparing.sweep import Skipped

OF_A_SWEEP = {
    "steps_computed": "computed",
    "steps_total": "of",
    "speedup": "speedup",
    "psnr": "psnr worst",
    "psnr_mean": "psnr mean",
    "ssim": "ssim",
    "prompt_score": "score",
    "plain_prompt_score": "plain score",
}


def print_comparison(found: Comparison) -> None:
    """The numbers, then one line for each prompt, then what is missing."""
    numbers = found.numbers()
    click.echo(shown_request(sorted(found.request.items())))
    print_pairs({said: shown(numbers, name) for name, said in NUMBERS.items()})
    click.echo()
    rows = [row.to_json() for row in found.rows]
    cells = [[row["prompt"], *(shown(row, name) for name in OF_A_PROMPT)] for row in rows]
    print_table(["prompt", *OF_A_PROMPT], cells)
    for name, why in found.unavailable.items():
        click.echo(f"no {name}: {why}")
    for name, claim in found.report["effective"].items():
        click.echo(f"{name}: {claim['state']}")
    for item in found.report["fallbacks"]:
        click.echo(f"fell back: {item['feature']} at {item['seam']}, {item['count']} x: {item['reason']}")
    click.echo("The speedup is of one timed run each; a machine that does other things moves it.")


def print_sweep(
    rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, skipped: Sequence[Skipped]
) -> None:
    """One line for each setting, the best one, and what was left out."""
    cells = [[_request(row), *(shown(row, name) for name in OF_A_SWEEP)] for row in rows]
    print_table(["request", *OF_A_SWEEP.values()], cells)
    for one in skipped:
        click.echo(f"left out: {shown_request(sorted(one.request.items()))}: {one.reason}")
    if best is None:
        click.echo("best: not chosen, for no row at the model's default steps and guidance skips anything")
    else:
        click.echo(
            f"best: {_request(best)}"
            + ("" if best["met_target"] else " (computes more than half, or loses prompt score)")
        )


def _request(row: Mapping[str, Any]) -> str:
    return shown_request(sorted(row["request"].items()))
