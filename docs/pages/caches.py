"""The tables of docs/caches.md, from docs/caches.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pages.markdown import code, table
from pages.marked import fill
from pages.repository import ROOT

PAGE = "docs/caches.md"
HEADERS = ("setting", "forwards", "wall time", "PSNR worst", "PSNR mean", "SSIM worst", "prompt score")
DEFAULT, LONG = 30, 50


def page() -> str:
    """The page with its tables written anew."""
    found = json.loads((ROOT / "docs/caches.json").read_text(encoding="utf-8"))
    return fill(
        PAGE,
        {
            "best": lambda: _best(found["best"]),
            "default-steps": lambda: _rows(found, DEFAULT),
            "long": lambda: _rows(found, LONG),
            "peers-default-steps": lambda: _peers(found, DEFAULT),
            "peers-long": lambda: _peers(found, LONG),
        },
    )


def _best(best: Mapping[str, Any]) -> str:
    request = json.dumps(best["request"])
    return (
        f"`{request}`: {best['steps_computed']} of {best['steps_total']} forwards, PSNR {best['psnr']:.1f} dB at the\n"
        f"worst of {best['prompts']} prompts and {best['psnr_mean']:.1f} dB in the mean, prompt score "
        f"{best['prompt_score']:.3f} (plain {best['plain_prompt_score']:.3f}).\n"
    )


def _rows(found: Mapping[str, Any], steps: int) -> str:
    rows = [row for row in found["rows"] if row["num_inference_steps"] == steps]
    rows.sort(key=lambda row: (row["feature"], -row["steps_computed"]))
    return table(HEADERS, (_cells(_setting(row["request"]), row) for row in rows))


def _peers(found: Mapping[str, Any], steps: int) -> str:
    rows = [row for row in found["peers"] if row["num_inference_steps"] == steps]
    rows.sort(key=lambda row: (row["like"], -row["steps_computed"]))
    lines = (_cells(f"{row['peer']} (as {code(row['like'])})", row) for row in rows)
    return table(HEADERS, lines)


def _cells(name: str, row: Mapping[str, Any]) -> Iterable[str]:
    whole = row["identical"]
    return (
        name,
        f"{row['steps_computed']:g}/{row['steps_total']}",
        f"{row['seconds'] / row['plain_seconds']:.2f}",
        "identical" if whole else f"{row['psnr']:.1f}",
        "identical" if whole else f"{row['psnr_mean']:.1f}",
        f"{row['ssim']:.4f}",
        f"{row['prompt_score']:.3f}",
    )


def _setting(request: Mapping[str, Any]) -> str:
    """A request as it is typed after ``-s``."""
    typed = []
    for key, value in request.items():
        if not isinstance(value, Mapping):
            typed.append(f"{key}={_literal(value)}")
            continue
        name = value.get("algorithm")
        typed += [f"{key}={name}"] if name else []
        typed += [
            f"{key}.{option}={_literal(given)}" for option, given in value.items() if option != "algorithm"
        ]
    return code(" ".join(typed))


def _literal(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
