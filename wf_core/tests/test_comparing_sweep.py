"""The settings of a sweep, its table, and the row that is best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wf_core import BadInput, Host
from wf_core.cli.compare_text import print_sweep
from wf_core.comparing import sweep
from wf_core.manifests.manifest import Manifest, ManifestError
from wf_core.testing import host_of
from wf_core.testing.cases import TOY

from .comparisons import comparison
from .test_comparing_runs import NTH, write_plugin

SWEEP = """example = { feature_cache = "nth" }
sweep = [
    { feature_cache = "nth" },
    { feature_cache = { algorithm = "nth", interval = 3 } },
    { feature-cache = "nth", nth_x = 1 },
]
"""
PLACE = {"model": "toy", "device": "cpu", "dtype": "float32"}
DEFAULTS = {"num_inference_steps": 4, "guidance_scale": 3.0}


def plugin(folder: Path, lines: str = SWEEP) -> Path:
    return write_plugin(folder, NTH.replace('example = { feature_cache = "nth" }\n', lines))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return host_of(TOY, plugin(tmp_path))


def chosen(host: Host, base: dict[str, Any] | None = None, names: tuple[str, ...] = ()) -> Any:
    from wf_core.testing.toy.trial import pipeline

    return sweep.settings(host, pipeline(), base or {}, names, run={}, facts={})


def test_the_manifest_holds_requests_in_normal_form(host: Host) -> None:
    [feature] = [offer.feature for offer in sweep.swept(host).values()]
    assert [dict(request) for request in feature.sweep][2] == {"feature_cache": "nth", "nth_x": 1}
    assert len(feature.sweep) == 3


@pytest.mark.parametrize("line", ["sweep = [1]", "sweep = [{}]", 'sweep = { feature_cache = "nth" }'])
def test_a_sweep_that_is_no_list_of_requests_is_refused(tmp_path: Path, line: str) -> None:
    path = plugin(tmp_path, line + "\n")
    with pytest.raises(ManifestError, match="sweep"):
        Manifest.load(path)


def test_settings_that_resolve_are_taken_and_others_are_left_out_with_the_reason(host: Host) -> None:
    runnable, skipped = chosen(host)
    assert [one.plan.feature("nth").option("interval") for one in runnable] == [2, 3]
    assert [one.request for one in skipped] == [{"feature_cache": "nth", "nth_x": 1}]
    assert "nth_x" in skipped[0].reason and skipped[0].reason.startswith("WF-R")


def test_the_base_request_stands_beside_and_the_sweeps_own_keys_count() -> None:
    assert sweep.merged({"feature-cache": "x", "dtype": "y"}, {"feature_cache": "nth"}) == {
        "dtype": "y",
        "feature_cache": "nth",
    }


def test_a_base_that_is_refused_leaves_nothing_to_sweep(host: Host) -> None:
    with pytest.raises(BadInput, match=r"nothing to sweep.*no_such_key"):
        chosen(host, {"no_such_key": 1})


def test_a_name_without_a_sweep_is_refused(host: Host) -> None:
    with pytest.raises(BadInput, match=r"no feature 'nht'.*did you mean .?nth"):
        chosen(host, names=("nht",))
    assert len(chosen(host, names=("nth",))[0]) == 2


# --- the table ---------------------------------------------------------------------------------------------------


def row(psnr: float | None = 30.0, computed: float = 4.0, **more: Any) -> dict[str, Any]:
    found = sweep.row_of("nth", comparison(psnr, computed=computed), PLACE)
    return {**found, "request": {"feature_cache": {"algorithm": "nth", "threshold": psnr}}, **more}


def test_a_row_says_where_how_and_what() -> None:
    found = sweep.row_of("nth", comparison(30.0, 20.0), PLACE)
    assert found["request"] == {"feature_cache": "nth"} and found["feature"] == "nth"
    assert {key: found[key] for key in (*PLACE, *DEFAULTS)} == {**PLACE, **DEFAULTS}
    assert (found["psnr"], found["steps_computed"], found["prompts"], found["height"]) == (20, 4, 2, 16)


def test_a_row_of_the_same_key_is_replaced_and_others_are_kept() -> None:
    old = [row(30.0), row(20.0), row(30.0, dtype="bfloat16")]
    new = [row(30.0, speedup=9.0)]
    merged = sweep.merge_rows(old, new)
    assert len(merged) == 3
    assert sorted(found["speedup"] for found in merged) == [2, 2, 9]
    assert sweep.merge_rows(merged, []) == merged == sweep.merge_rows(reversed(old), new)


def best(*rows: dict[str, Any]) -> Any:
    return sweep.best_of(rows, PLACE, DEFAULTS)


def test_the_best_has_the_highest_worst_prompt_of_those_that_skip_half() -> None:
    found = best(row(30.0), row(33.0), row(40.0, computed=5.0))
    assert (found["psnr"], found["met_target"]) == (33, True)
    assert found["request"]["feature_cache"]["threshold"] == 33.0


def test_a_loss_of_prompt_score_is_no_best() -> None:
    kept, lost = {"prompt_score": 1, "plain_prompt_score": 1}, {"prompt_score": 0.9, "plain_prompt_score": 1}
    assert best(row(30.0, **kept), row(33.0, **lost))["psnr"] == 30


def test_where_none_meets_the_target_the_best_of_those_that_skip_is_marked() -> None:
    found = best(row(30.0, computed=5.0), row(33.0, computed=6.0), row(None, computed=8.0))
    assert (found["psnr"], found["met_target"]) == (33, False)


def test_identical_clips_are_the_best_that_can_be() -> None:
    assert best(row(99.0), row(None))["psnr"] is None


def test_rows_at_other_steps_or_places_are_not_chosen() -> None:
    others = [row(90.0, num_inference_steps=50), row(90.0, guidance_scale=5.0), row(90.0, dtype="bfloat16")]
    assert best(row(30.0), *others)["psnr"] == 30
    assert best(*others) is None


@pytest.mark.parametrize("table", [{"rows": 1}, {"rows": [1]}, {"rows": [{"psnr": 1}]}])
def test_a_file_that_is_no_table_is_not_added_to(table: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="no table of a sweep"):
        sweep.check_table(table)
    assert sweep.check_table({"best": None, "rows": [row()]}) and sweep.check_table({}) == []


def test_a_sweep_as_text_names_the_best_and_what_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(30.0), row(20.0, computed=2.0)]
    print_sweep(rows, best(*rows), [sweep.Skipped("nth", {"x": 1}, "WF-X no.")])
    head, first, second, left_out, chosen = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["request", "computed", "of"]
    assert first.split()[-8:-5] == ["4", "8", "2"] and second.split()[-8] == "2"
    assert left_out == "left out: x=1: WF-X no."
    assert chosen.startswith("best: feature_cache=") and "30.0" in chosen and "loses" not in chosen
    print_sweep(rows, None, [])
    assert "best: not chosen" in capsys.readouterr().out


def test_rows_measured_alike() -> None:
    rows = [row(30.0), row(20.0), row(10.0, dtype="bfloat16")]
    assert sweep.alike(rows, rows[0]) == rows[:2]
