"""docs/caches.json: its form, its best row by its own rule, and one of its rows again on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wf_core.cli import main
from wf_core.comparing.sweep import best_of, check_table

DOCS = Path(__file__).parents[1] / "docs"
TABLE = json.loads((DOCS / "caches.json").read_text(encoding="utf-8"))
PLACE = {"model": "tiny-wan", "device": "NVIDIA H200", "dtype": "float32"}
CACHES = {
    "adacache", "blocktaylorseer", "cfg-gate", "custom", "dualblock", "dynamicblock", "easycache", "firstblock",
    "magcache", "taylorseer", "teacache",
}  # fmt: skip


@pytest.mark.parametrize("steps", [30, 50])
def test_every_cache_has_three_settings_or_more_of_64_prompts(steps: int) -> None:
    rows = [row for row in TABLE["rows"] if row["num_inference_steps"] == steps]
    assert {row["feature"] for row in rows} == CACHES
    for feature in CACHES:
        own = [row for row in rows if row["feature"] == feature]
        assert len(own) >= 3, feature
        assert all(row["prompts"] >= 64 for row in own)
    assert [row for row in TABLE["peers"] if row["num_inference_steps"] == steps]


def test_the_best_row_is_the_one_that_the_rule_gives_and_meets_the_target() -> None:
    defaults = {"num_inference_steps": 30, "guidance_scale": 3.0}
    best = TABLE["best"]
    assert best == best_of(check_table(TABLE), PLACE, defaults)
    assert best["met_target"]
    assert best["steps_computed"] <= best["steps_total"] / 2
    assert best["psnr"] >= 30
    assert best["prompt_score"] >= best["plain_prompt_score"]


def test_the_page_shows_the_plot_that_lies_beside_it() -> None:
    assert "](caches.svg)" in (DOCS / "caches.md").read_text(encoding="utf-8")
    assert (DOCS / "caches.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.slow
def test_the_best_row_again_on_this_machine(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(TABLE["best"]["request"]))
    arguments = [
        "compare",
        "tiny-wan",
        "--load-json",
        str(request),
        "--json",
        "--prompt",
        "a red 3 moving left",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["steps_total"] == TABLE["best"]["steps_total"]
    assert found["steps_computed"] <= found["steps_total"] / 2
    # another prompt and machine than the row's: no worse than 5 dB under the worst of its 64
    assert found["psnr"] >= TABLE["best"]["psnr"] - 5
    assert found["prompt_score"] >= found["plain_prompt_score"]
