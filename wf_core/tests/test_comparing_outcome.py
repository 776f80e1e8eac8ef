"""The numbers of a comparison, and the page and plot that show them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import attrs
import pytest

from wf_core.comparing import requirements
from wf_core.comparing.outcome import Row, Side, by_kind, overall, tidy
from wf_core.comparing.page import page
from wf_core.comparing.pictures import Pair
from wf_core.comparing.plot import frontier_svg, series
from wf_core.errors import BadInput

from .comparisons import comparison, measures


def test_the_worst_prompt_counts_and_the_mean_stands_beside_it() -> None:
    numbers = comparison(30.0, 20.0, None).numbers()
    assert (numbers["psnr"], numbers["psnr_mean"], numbers["identical"]) == (20, 25, False)
    assert numbers["speedup"] == 2 and (numbers["steps_computed"], numbers["steps_total"]) == (4, 8)


def test_of_lpips_the_highest_is_the_worst() -> None:
    rows = tuple(Row("p", 0, measures(lpips=value)) for value in (0.1, 0.4))
    assert comparison(rows=rows).numbers()["lpips"] == 0.4


def test_the_json_is_one_object_of_plain_values() -> None:
    found = comparison(30.0, None).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [row["psnr"] for row in found["prompts"]] == [30, None]
    assert found["unavailable"] == {"lpips": "not here"}


def test_steps_are_those_of_one_run_and_the_mean_where_batches_differ() -> None:
    side = Side((1.0, 1.0), (None, 5), (4.0, 7.0))
    assert (side.steps, side.peak_bytes, side.total_seconds) == (5.5, 5, 2.0)
    assert Side((1.0,) * 2, (None,) * 2, (4.0, 4.0)).steps == 4


def test_scores_are_means_over_the_clips_that_were_judged() -> None:
    scores = [{"a": True, "b": False}, None, {"a": True, "b": True}]
    assert overall(scores) == 0.75 and by_kind(scores) == {"a": 1, "b": 0.5}
    assert overall([None]) is None and by_kind([None]) is None


def test_numbers_are_short() -> None:
    assert [tidy(value) for value in (0.123456789, 4.0, 7, None, 123456789.0)] == [
        0.123457, 4, 7, None, 123457000.0,
    ]  # fmt: skip


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_page_holds_both_clips_the_decisions_and_the_numbers(tmp_path: Path) -> None:
    for name in ("plain", "fast"):
        (tmp_path / name).write_bytes(name.encode())
    text = page("t", [comparison(30.0)], pairs=[Pair("p", tmp_path / "plain", tmp_path / "fast")])
    assert "base64,cGxhaW4=" in text and "base64,ZmFzdA==" in text
    cells = re.findall(r'<td class="(computed|skipped|part)" title="([^"]*)">(\d)</td>', text)
    assert [(look, int(step)) for look, _, step in cells] == [
        ("computed", 0), ("skipped", 1), ("computed", 2), ("part", 3),
    ]  # fmt: skip
    assert cells[0][1] == "step 0: computed, first-steps" and "25% of the blocks" in cells[3][1]
    assert "a&lt;b &amp; c" in cells[1][1]
    assert re.search(r"forwards computed</th><td>4</td>", text) and "no lpips: not here" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_whatever_a_prompt_or_request_holds_is_text_on_the_page() -> None:
    evil = "<script>alert(1)</script><!--sections-->"
    [row] = comparison(30.0).rows
    found = comparison(rows=(attrs.evolve(row, prompt=evil),), request={"x": evil}, unavailable={evil: evil})
    text = page(evil, [found])
    assert "<script" not in text and text.count("&lt;script&gt;") >= 4
    assert text.count("</section>") == 1


def test_a_run_without_a_cache_says_so() -> None:
    report = {**comparison(30.0).report, "steps": {"forwards": {"called": 8, "computed": 8}}}
    assert "every step was computed" in page("t", [comparison(None, report=report)])


def test_identical_clips_are_called_so_and_a_missing_number_is_a_dash() -> None:
    text = page("t", [comparison(None)])
    assert "PSNR, worst prompt (dB)</th><td>identical</td>" in text
    assert "LPIPS, worst prompt</th><td>\N{EN DASH}</td>" in text


# --- the plot ----------------------------------------------------------------------------------------------------


def rows() -> list[dict[str, object]]:
    def row(feature: str, computed: int, psnr: float | None) -> dict[str, object]:
        mean = None if psnr is None else psnr + 1
        return {
            "feature": feature,
            "steps_computed": computed,
            "steps_total": 8,
            "psnr": psnr,
            "psnr_mean": mean,
        }

    return [row("nth", 4, 30.0), row("nth", 2, 20.0), row("other", 4, 35.0), row("other", 8, None)]


def test_a_series_for_each_feature_in_order_of_the_share() -> None:
    assert series(rows()) == {"nth": [(25.0, 20.0, 21.0), (50.0, 30.0, 31.0)], "other": [(50.0, 35.0, 36.0)]}


def test_the_plot_is_an_svg_with_a_line_for_each_feature_and_the_same_each_time() -> None:
    text = frontier_svg(rows())
    ElementTree.fromstring(text)
    assert ">nth</text>" in text and ">other</text>" in text
    assert text == frontier_svg(rows())
    assert text != frontier_svg(rows()[:1])


def test_a_plot_of_nothing_and_of_odd_names_is_drawn() -> None:
    ElementTree.fromstring(frontier_svg([]))
    odd = {**rows()[0], "feature": "_<a>$x$"}
    assert "&lt;a&gt;$x$" in frontier_svg([odd])


def test_missing_libraries_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "matplotlib" else object())
    with pytest.raises(BadInput, match=r"without matplotlib: pip install 'wf-core\[compare\]'"):
        requirements.require_libraries()
