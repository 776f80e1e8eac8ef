"""The measurement of HunyuanVideo and Cosmos, with tiny models on a CPU: it runs, and says what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "bench"))
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import bench_families
import family_forwards
from bench_families import Effort, family, faults, main, merge, planned
from family_denoisers import FAMILY_DENOISERS, TINY
from family_forwards import Compared, Measured
from mask_memory import NewTensors
from pages import performance


@pytest.fixture(scope="module")
def measured(host: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command line that is in the documentation writes, with one forward of each."""
    file = tmp_path_factory.mktemp("bench") / "found.json"
    assert main(["--tiny", "--repeat", "1", "--json", str(file)], host) == 0
    found: dict[str, Any] = json.loads(file.read_text())["families"]
    return found


@pytest.mark.parametrize("name", FAMILY_DENOISERS)
def test_a_model_is_measured(measured: dict[str, Any], name: str) -> None:
    found = measured[name]
    assert found["session_identical"] is True
    assert found["blocks"] == found["of_blocks"] == TINY[name].blocks
    assert {*found["request"], *found["dropped"]} == set(family_forwards.PREFERRED)
    assert "WF-U010" in found["dropped"]["fused_rope"], "no kernels on a CPU"
    assert found["effective"]["sdpa"] == "effective" and found["fallbacks"] == []
    assert 1e-4 < found["numerics"]["stock_error"] < 0.05
    assert found["numerics"]["ratio"] <= 1.1
    assert all(found[f"{subject}_ms"] > 0 for subject in ("stock", "session", "ours_exact"))


def test_stocks_mask_of_all_pairs_is_seen_and_ours_has_none(measured: dict[str, Any]) -> None:
    found = measured["mask_memory"]
    assert found["mask_of_pairs_mib"] > 1
    assert found["stock"]["largest_mask_mib"] >= found["mask_of_pairs_mib"]
    assert found["ours_exact"]["largest_mask_mib"] < 0.01


def test_the_tables_are_made_of_it(measured: dict[str, Any]) -> None:
    forwards, numerics = performance.families(measured), performance.family_numerics(measured)
    for denoiser in TINY.values():
        assert forwards.count(f"| {denoiser.title} |") == 3
        assert f"| {denoiser.title} | `attention_backend`" in numerics
    assert measured["mask_memory"]["ours_exact"]["largest_mask_is"].startswith("bool")
    assert "144 + 993 tokens, 2 blocks" in performance.mask_memory(measured)


def test_without_it_the_tables_say_that_nothing_was_measured() -> None:
    for table in (performance.families({}), performance.family_numerics({}), performance.mask_memory({})):
        assert "ot measured yet" in table
    full = {
        "stock": {"failed": "OutOfMemoryError: CUDA out of memory"},
        "ours_exact": {"failed": "RuntimeError: x"},
    }
    text = performance.mask_memory({"mask_memory": {**full, "tokens": 1, "text_tokens": 1, "blocks": 2}})
    assert "| out of memory |" in text and "| failed |" in text


def test_a_published_shape_has_the_published_tokens() -> None:
    found = {name: denoiser.tokens(denoiser.latents) for name, denoiser in FAMILY_DENOISERS.items()}
    assert found == {
        "hunyuanvideo_720p": 118_800,
        "hunyuanvideo15_480p": 49_290,
        "cosmos_predict2_2b_704p": 84_480,
    }


def test_a_published_config_has_the_published_parameters() -> None:
    found = {}
    for name, denoiser in FAMILY_DENOISERS.items():
        with torch.device("meta"):
            found[name] = sum(p.numel() for p in denoiser.model(**denoiser.config).parameters())
    assert found == {
        "hunyuanvideo_720p": 12_821_012_544,
        "hunyuanvideo15_480p": 8_326_608_160,
        "cosmos_predict2_2b_704p": 1_956_413_440,
    }


@pytest.mark.parametrize("smaller_runs", [True, False])
def test_what_does_not_fit_is_said_and_the_next_clip_is_measured(
    host: Any, monkeypatch: pytest.MonkeyPatch, smaller_runs: bool
) -> None:
    denoiser = attrs.evolve(TINY["hunyuanvideo_720p"], short=(1, 4, 1, 4, 4))
    fitting = {denoiser.short, *(denoiser.smaller.values() if smaller_runs else ())}
    stock = denoiser.model.forward

    def forward(self: Any, hidden_states: torch.Tensor, **others: Any) -> Any:
        if tuple(hidden_states.shape) not in fitting:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 26 GiB\nmore")
        return stock(self, hidden_states, **others)

    monkeypatch.setattr(denoiser.model, "forward", forward)
    with torch.no_grad():
        found = family(host, "tiny", denoiser, Effort("cpu", repeat=1))
    clips = [clip["title"] for clip in found["did_not_run"]]
    assert clips == [denoiser.title, "tiny HunyuanVideo, shorter"][: 1 if smaller_runs else 2]
    said = found["did_not_run"][0]["failed"]["stock"]
    assert said == "OutOfMemoryError: CUDA out of memory. Tried to allocate 26 GiB"
    assert ("stock_ms" in found) is smaller_runs and (faults(found) == []) is smaller_runs
    assert found["title"] == ("tiny HunyuanVideo, shorter" if smaller_runs else denoiser.title)
    table = performance.families({"hunyuanvideo_720p": found})
    assert f"| {denoiser.title} | {performance.SUBJECTS['stock']} | out of memory |" in table
    assert found["title"] in performance.family_numerics({"hunyuanvideo_720p": found})


def test_a_failure_of_one_subject_leaves_the_others() -> None:
    lost = Measured(failed="OutOfMemoryError: full")
    ran = Measured(torch.ones(2), [4.0, 6.0], 3.0, 1.0)
    figures = bench_families.figures(Compared({"stock": lost, "session": lost, "ours_exact": ran}, {}, []))
    assert figures["ours_exact_ms"] == 5.0 and figures["ours_exact_peak_mib"] == 4
    assert set(figures["failed"]) == {"stock", "session"}
    assert figures["session_identical"] is None and "ratio" not in figures


def trial(seconds: float) -> Compared:
    """Few blocks of which a forward takes so many seconds."""
    subjects = {name: Measured(times=[1000 * seconds]) for name in ("stock", "session", "ours_exact")}
    return Compared(subjects, {}, [])


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.1, {"repeat": 2, "warm_up": True, "depth": {"num_layers": 20, "num_single_layers": 40}}),
        (2.0, {"repeat": 1, "warm_up": False, "depth": {"num_layers": 20, "num_single_layers": 40}}),
        (8.0, {"repeat": 1, "warm_up": False, "depth": {"num_layers": 11, "num_single_layers": 22}}),
    ],
)
def test_effort_follows_from_the_few_blocks(seconds: float, expected: dict[str, Any]) -> None:
    """Sixty blocks from four: 1.5, 30 and 120 seconds of a forward, and three of these in a turn."""
    whole = FAMILY_DENOISERS["hunyuanvideo_720p"]
    assert planned(trial(seconds), whole.shortened(2), whole, Effort()) == expected


def test_a_changed_bit_and_a_larger_error_are_faults() -> None:
    assert faults({"ratio": 0.7, "session_identical": True, "numerics": {"ratio": 1.1}}) == []
    assert len(faults({"ratio": 0.7, "session_identical": False, "numerics": {"ratio": float("nan")}})) == 2


def test_a_failure_is_told_and_the_others_are_measured(
    host: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(host: Any, name: str, *rest: Any) -> Any:
        if name == "hunyuanvideo_720p":
            raise RuntimeError("no kernel image")
        return {"ratio": 0.7, "session_identical": False, "numerics": {"ratio": 1.0}}

    monkeypatch.setattr(bench_families, "family", broken)
    file = tmp_path / "found.json"
    names = ["--only", "hunyuanvideo_720p", "cosmos_predict2_2b_704p"]
    assert main(["--tiny", *names, "--json", str(file)], host) == 1
    told = capsys.readouterr().err
    assert "hunyuanvideo_720p: RuntimeError: no kernel image" in told
    assert "cosmos_predict2_2b_704p: an empty session changed a bit" in told
    assert set(json.loads(file.read_text())["families"]) == {"machine", "cosmos_predict2_2b_704p"}


def test_what_others_measured_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "performance.json"
    file.write_text(json.dumps({"card": "of another day", "families": {"a": 1, "b": 1}}))
    merge(file, {"b": 2, "c": 3})
    assert json.loads(file.read_text()) == {"card": "of another day", "families": {"a": 1, "b": 2, "c": 3}}
    with pytest.raises(SystemExit):
        main(["--tiny", "--json", str(file)])
    assert "name a new file" in capsys.readouterr().err


def test_a_tensor_that_is_only_another_view_is_no_mask_of_its_own() -> None:
    with NewTensors(4) as new:
        row = torch.ones(1, 1, 1, 8, dtype=torch.bool)
        row.expand(1, 1, 8, 8).transpose(2, 3)
        assert new.largest_mask[0] == 8
        torch.zeros(1, 2, 8, 6)
        assert new.largest_mask[0] == 2 * 8 * 6 * 4
        torch.zeros(99, 99)
        assert new.largest_mask[0] == 2 * 8 * 6 * 4 < new.largest[0]
