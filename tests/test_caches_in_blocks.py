"""Caches that look into blocks, on every family's bench: seams inside of blocks are each family's own.

The plugins' own tests run the whole kit on one family; these are the checks that could fail on another.
"""

from __future__ import annotations

import pytest

from wf_core.testing.cases import FeatureCase
from wf_core.testing.checks import check_named
from wf_core.testing.examination import apply
from wf_core.testing.hosts import record_of

CHECKS = (
    "a_second_request_starts_clean",
    "base_is_untouched_after_an_abort",
    "declared_effects_match_what_is_seen",
)


@pytest.mark.parametrize("family", ["hunyuan", "cosmos"])
@pytest.mark.parametrize("name", ["teacache", "adacache", "blocktaylorseer"])
def test_they_conform(name: str, family: str) -> None:
    record = record_of(f"wf_plugin_cache_{name.removeprefix('block')}")
    assert record.manifest is not None
    feature = record.manifest.feature(name)
    assert feature is not None
    case = FeatureCase(record, (record_of(f"wf_plugin_{family}"),), feature=feature)
    results = [apply(check_named(check), case, name) for check in CHECKS]
    assert [(result.state, result.message) for result in results] == [("passed", "")] * len(CHECKS)
