"""Attention providers against float64: what is right passes, and every way to be wrong is told by its own line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from wf_core import Host
from wf_core.errors import BadInput
from wf_core.verifying.outcome import Finding, Verification
from wf_core.verifying.runs import verify_attention

from .attention_toys import CODE, FEATURES, MANIFEST
from .conftest import Site

INPUTS = 10


@pytest.fixture
def host(site: Site, importable: Callable[[Path], None]) -> Host:
    site.plugin("attention-toys", MANIFEST, CODE)
    importable(site.folder)
    return Host.discover([str(site.folder)])


def verify(host: Host, *names: str, dtype: str = "float32", inputs: int = INPUTS) -> Verification:
    return verify_attention(host, names, "cpu", (dtype,), inputs)


def finding(host: Host, name: str, dtype: str = "float32") -> Finding:
    [found] = verify(host, name, dtype=dtype).findings
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_right_is_within_its_bound(host: Host, dtype: str) -> None:
    found = finding(host, "right", dtype)
    assert (found.verdict, found.why, found.inputs) == ("ok", "", INPUTS)
    assert found.calls == INPUTS + 3  # three of them have a mask, and are called once more
    assert 0 < found.worst["relative-l2"].value < {"float32": 1e-6, "bfloat16": 5e-3, "float16": 1e-3}[dtype]
    assert found.worst["relative-l2"].at.startswith("B")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("scale", "relative-l2"),
        ("coarse", "relative-l2"),
        ("unmasked", "the mask is not honoured"),
        ("heads", "relative-l2"),
        ("tiled", "relative-l2"),
        ("nan", "the output is not finite"),
        ("silent", "a row that attends to something is all zero"),
        ("uniform", "a row that attends to nothing is not zero"),
        ("raises", "it raises RuntimeError: no kernel image"),
    ],
)
def test_every_way_to_be_wrong_has_its_line(host: Host, name: str, line: str) -> None:
    found = finding(host, name)
    assert found.verdict == "exceeds"
    assert found.why.startswith(line), found.why
    assert " at B" in found.why


def test_rows_that_attend_to_nothing_are_the_stock_kernels_where_a_provider_is_exact(host: Host) -> None:
    """What `uniform` does is a fault of an equivalent provider."""
    found = finding(host, "stock")
    assert (found.tier, found.verdict) == ("exact", "ok")
    assert found.worst["relative-l2"].value < 1e-6


def test_grouped_heads_of_another_pairing_are_caught_where_they_are_grouped(host: Host) -> None:
    assert "H12/3" in finding(host, "tiled").why


def test_a_lossy_provider_is_held_to_its_tier_or_to_its_own_bound(host: Host) -> None:
    lossy = finding(host, "lossy")
    assert (lossy.tier, lossy.verdict) == ("approximate", "ok")
    assert lossy.limits == ("cosine at least 0.998 (tier approximate)",)
    bounded = finding(host, "bounded")
    assert (bounded.verdict, bounded.limits) == ("exceeds", ("relative-l2 at most 1e-09 (its manifest)",))


def test_calls_that_a_condition_rules_out_are_counted_with_the_reason(host: Host) -> None:
    found = finding(host, "narrow")
    assert found.verdict == "ok" and found.inputs + sum(found.ineligible.values()) == INPUTS
    assert found.ineligible["heads of 64 only, these have 128"] == 4


def test_what_cannot_be_prepared_is_unavailable_with_the_reason(host: Host) -> None:
    found = finding(host, "absent")
    assert (found.verdict, found.why) == ("unavailable", "its package does not import")
    assert finding(host, "paper").why == "only declared"


def test_a_provider_answers_to_its_name_to_its_values_and_to_shared_names(host: Host) -> None:
    assert [f.feature for f in verify(host, "Right_Kernel", inputs=1).findings] == ["right"]
    assert len(verify(host, "toys", inputs=1).findings) == len(FEATURES)
    with pytest.raises(BadInput, match="no attention backend 'rihgt'; did you mean right"):
        verify(host, "rihgt")


def test_a_device_that_is_not_there_is_bad_input(host: Host) -> None:
    with pytest.raises(BadInput, match="torch sees"):
        verify_attention(host, ("right",), "cuda:99")


def test_the_record_is_json(host: Host) -> None:
    found = json.loads(json.dumps(verify(host, "right", inputs=1).to_json()))
    assert (found["schema"], found["holds"], found["findings"][0]["verdict"]) == (1, True, "ok")
