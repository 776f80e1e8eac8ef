"""A report as text: one table of features, one of steps, and the fallbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def print_report(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    console = Console(highlight=False)
    features = Table("feature", "tier", "state", Column("evidence", overflow="fold"))
    features.title, features.title_justify = f"plan {report['plan']}", "left"
    for name, claim in report["effective"].items():
        features.add_row(name, claim["tier"], claim["state"], _pairs(claim["evidence"]))
    if not report["effective"]:
        features.add_row("(none)", "", "", "the stock computation")
    console.print(features)
    console.print(_steps_table(Table, report["steps"]))
    for item in report["fallbacks"]:
        console.print(f"fell back: {item['feature']} at {item['seam']}, {item['count']} x: {item['reason']}")
    for warning in report.get("warnings", ()):
        console.print(f"warning: {warning['code']} {warning['reason']}")


def _steps_table(table_class: Any, steps: Mapping[str, Any]) -> Any:
    caches = steps.get("caches", {}).values()
    table = table_class(
        "expert / branch",
        "calls",
        "computed",
        "skipped",
        "skipped steps",
        title="steps",
        title_justify="left",
    )
    for key, calls in steps.get("calls", {}).items():
        skipped = [step for cache in caches for step in cache["branches"].get(key, {}).get("skipped", ())]
        table.add_row(key, str(calls), str(calls - len(skipped)), str(len(skipped)), _ranges(skipped))
    return table


def _pairs(evidence: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_short(value)}" for key, value in evidence.items())


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _ranges(steps: Iterable[int]) -> str:
    """``[2, 3, 4, 7]`` -> ``2-4, 7``."""
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
