"""The settings that a sweep tries, the table that it writes, and which row of it is best."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from wf_core.errors import BadInput, Refused
from wf_core.names import did_you_mean, switch_key
from wf_core.resolving.rejudging import not_activatable, refuse
from wf_core.values import canonical_json, thaw

if TYPE_CHECKING:
    from wf_core.comparing.outcome import Comparison
    from wf_core.host import Host
    from wf_core.plugins.catalog import Offer
    from wf_core.resolving.plan import Plan

KIND = "feature-cache"
PLACE, CALL = ("model", "device", "dtype"), ("num_inference_steps", "guidance_scale")
KEY = (*PLACE, *CALL, "request")
"""What tells two rows of a table apart; a new row takes the place of an old one with the same."""
MEASURED = ("psnr", "psnr_mean", "prompt_score", "plain_prompt_score")
"""Numbers of a row, None where there is none."""
MOST = 1e12
"""No number of a row is as large."""
HALF = 0.5
"""The share of the plain run's forwards that the best setting may compute at most."""


@attrs.frozen
class Setting:
    """One request of a feature's ``sweep``, with its plan."""

    feature: str
    plan: Plan


@attrs.frozen
class Skipped:
    """A request of a sweep that cannot be run here, with the first reason."""

    feature: str
    request: Mapping[str, Any]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"feature": self.feature, "request": thaw(self.request), "reason": self.reason}


def settings(
    host: Host,
    model: str,
    base: Mapping[str, Any],
    names: Collection[str],
    *,
    run: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> tuple[list[Setting], list[Skipped]]:
    """Every request that the caches (those of these names, or all) declare for a sweep, on top of ``base``.

    Raises `BadInput` for a name without a sweep, and where nothing is left to run.
    """
    offers = swept(host)
    for name in names:
        if name not in offers:
            raise BadInput(f"no feature {name!r} of kind {KIND} declares a sweep{did_you_mean(name, offers)}")
    runnable: list[Setting] = []
    skipped: list[Skipped] = []
    for name, offer in offers.items():
        for own in offer.feature.sweep if not names or name in names else ():
            request = merged(base, thaw(own))
            try:
                plan = host.resolve(model, request, run=run, facts=facts)
                refuse(plan, not_activatable(plan))
            except Refused as refused:
                skipped.append(Skipped(name, request, first_reason(refused)))
            else:
                runnable.append(Setting(name, plan))
    if not runnable:
        why = f": {skipped[0].feature}: {skipped[0].reason}" if skipped else "; no cache declares a sweep"
        raise BadInput(f"there is nothing to sweep on {model}{why}")
    return runnable, skipped


def swept(host: Host) -> dict[str, Offer]:
    """The caches of usable plugins that declare a sweep, by name, in order."""
    offers = {offer.feature.name: offer for offer in host.catalog.features() if offer.state == "available"}
    return {
        name: offer
        for name, offer in sorted(offers.items())
        if offer.feature.kind == KIND and offer.feature.sweep
    }


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Both requests as one; where they give the same key, the sweep's own counts."""
    wins = {switch_key(key) for key in own}
    return {**{key: value for key, value in base.items() if switch_key(key) not in wins}, **own}


def first_reason(refused: Refused) -> str:
    """The first violation as ``CODE reason``."""
    violations = refused.refusal.violations
    return f"{violations[0].code} {violations[0].reason}" if violations else str(refused)


# --- the table ---------------------------------------------------------------------------------------------------


def row_of(feature: str, comparison: Comparison, place: Mapping[str, Any]) -> dict[str, Any]:
    """One row: the feature, where it was measured (`PLACE`), the call as the run reported it, and the numbers."""
    facts = comparison.report["run"]["facts"]
    call = {name: facts.get(f"run.{name}") for name in CALL}
    size = {name: facts.get(f"run.{name}") for name in ("height", "width", "num_frames")}
    numbers = comparison.numbers()
    request = numbers.pop("request")
    seeds = {"prompts": len(comparison.rows), "seed": comparison.rows[0].seed}
    return {**place, **call, "feature": feature, "request": request, **numbers, **size, **seeds}


def merge_rows(old: Iterable[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The old rows, but for those that a new one replaces, and the new ones, in order of their keys."""
    rows = {_key(row): dict(row) for row in (*old, *new)}
    return [rows[key] for key in sorted(rows)]


def alike(rows: Iterable[Mapping[str, Any]], row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows that were measured like this one: on the same model, device, dtype, steps and guidance."""
    return [other for other in rows if all(other[name] == row[name] for name in (*PLACE, *CALL))]


def best_of(
    rows: Iterable[Mapping[str, Any]], place: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The row to use at the model's default steps and guidance, on this device and in this dtype; None for none.

    That is the highest PSNR of the worst prompt among the rows that compute at most half of the plain run's forwards
    and lose nothing of its prompt score (``met_target``); where there is none, among all that skip anything.
    """
    here = [
        row
        for row in rows
        if all(row.get(name) == place[name] for name in PLACE)
        and all(row.get(name) == defaults.get(name, row.get(name)) for name in CALL)
        and row["steps_computed"] < row["steps_total"]
    ]
    good = [row for row in here if meets_target(row)]
    if not here:
        return None
    chosen = max(good or here, key=lambda row: math.inf if row["psnr"] is None else row["psnr"])
    return {**chosen, "met_target": bool(good)}


def meets_target(row: Mapping[str, Any]) -> bool:
    """At most half of the forwards, and no loss of prompt score where the model has one."""
    kept = row["prompt_score"] is None or row["prompt_score"] >= row["plain_prompt_score"]
    return bool(row["steps_computed"] <= HALF * row["steps_total"] and kept)


def check_table(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of a table that is to be added to. Raises `BadInput` for what is none."""
    rows = table.get("rows", [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise BadInput('it is no table of a sweep: {"best": {...}, "rows": [...]}')
    for number, row in enumerate(rows):
        if wrong := fault_of_row(row):
            raise BadInput(f"it is no table of a sweep: {wrong} in row {number}")
    return rows


def fault_of_row(row: Mapping[str, Any]) -> str:
    """What of a row from a file could be neither compared nor drawn; "" for nothing."""
    needed = (*KEY, "feature", "steps_computed", "steps_total", *MEASURED)
    if missing := [name for name in needed if name not in row]:
        return f"no {missing[0]}"
    texts = all(isinstance(row[name], str) for name in (*PLACE, "feature"))
    counts = all(_is_number(row[name]) for name in ("steps_computed", "steps_total"))
    others = all(row[name] is None or _is_number(row[name]) for name in (*CALL, *MEASURED))
    if not texts or not counts or not others or not isinstance(row["request"], Mapping):
        return "a value of another type"
    if row["steps_total"] <= 0:
        return "no forwards of the plain run"
    pairs = (("psnr", "psnr_mean"), ("prompt_score", "plain_prompt_score"))
    half = [other for one, other in pairs if (row[one] is None) != (row[other] is None)]
    return f"half of a pair: {half[0]}" if half else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST


def _key(row: Mapping[str, Any]) -> str:
    return canonical_json([row[name] for name in KEY])
