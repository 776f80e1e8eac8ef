from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_sparse_vmoba" / "wf-plugin.toml")


def unmet(name: str, facts: dict, **options: object) -> list[str]:
    """The codes of the conditions that these facts and options decide against, defaults filled in."""
    feature = MANIFEST.feature(name)
    assert feature is not None
    values = {option.name: options.get(option.name, option.default) for option in feature.options}
    known = Facts.of(facts, "test")
    judged = ((c.code, c.judge(known, values).state) for c in feature.conditions)
    return [code for code, state in judged if state == "unmet"]


CHUNKS = {
    "temporal_chunk_size": 2,
    "spatial_chunk_height": 3,
    "spatial_chunk_width": 4,
    "st_chunk_frames": 4,
    "st_chunk_height": 6,
    "st_chunk_width": 4,
}


def grid(frames: int, height: int, width: int) -> dict:
    parts = {"run.grid_frames": frames, "run.grid_height": height, "run.grid_width": width}
    return {"run.token_grid": [frames, height, width], **parts}


def test_the_shipped_profile_is_for_one_grid() -> None:
    assert unmet("vmoba", grid(31, 22, 40)) == []
    assert unmet("vmoba", grid(21, 30, 52)) == ["WF-Z023"]


def test_chunks_must_divide_the_grid() -> None:
    assert unmet("vmoba", grid(20, 30, 52), **CHUNKS) == []
    assert unmet("vmoba", grid(21, 30, 52), **CHUNKS) == ["WF-Z024", "WF-Z024"]


def test_half_given_chunks_are_not_completed() -> None:
    assert unmet("vmoba", grid(31, 22, 40), temporal_chunk_size=1) == ["WF-Z022"]


def test_a_fixed_number_of_chunks_must_be_said() -> None:
    assert unmet("vmoba", grid(31, 22, 40), moba_select_mode="topk") == ["WF-Z025"]
