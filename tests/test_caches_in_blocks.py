"""Every cache on the benches of the families beside Wan, whose seams inside of blocks are their own.

The plugins' own tests run the whole kit on one family; these are the checks that could fail on another.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from wf_core import Host, Refused
from wf_core.manifests.effects import Effect, EffectRule
from wf_core.testing import host_of
from wf_core.testing.cases import FeatureCase
from wf_core.testing.checks import check_named
from wf_core.testing.examination import apply
from wf_core.testing.hosts import record_of

CACHES = {
    "teacache": "teacache",
    "custom": "custom",
    "magcache": "magcache",
    "adacache": "adacache",
    "taylorseer": "taylorseer",
    "blocktaylorseer": "taylorseer",
    "firstblock": "blocks",
    "dualblock": "blocks",
    "dynamicblock": "blocks",
    "easycache": "easycache",
}
"""The plugin of each. How they begin anew after an abort is tested with each family."""
CHECKS = (
    "a_second_request_starts_clean",
    "declared_effects_match_what_is_seen",
    "two_sessions_at_once_equal_their_solo_runs",
)
ABORTED = "base_is_untouched_after_an_abort"
IN_BLOCKS = ("teacache", "adacache", "blocktaylorseer")
"""Those that stand at a seam inside of blocks, one for each of the seams; a callback also aborts their runs."""


@pytest.mark.parametrize("family", ["hunyuan", "cosmos"])
@pytest.mark.parametrize("name", CACHES)
def test_they_conform(name: str, family: str) -> None:
    record = record_of(f"wf_plugin_cache_{CACHES[name]}")
    assert record.manifest is not None
    feature = record.manifest.feature(name)
    assert feature is not None
    case = FeatureCase(record, (record_of(f"wf_plugin_{family}"),), feature=feature)
    checks = (*CHECKS, *((ABORTED,) if name in IN_BLOCKS else ()))
    results = [apply(check_named(check), case, name) for check in checks]
    assert [(result.state, result.message) for result in results] == [("passed", "")] * len(checks)


# --- decisions inside of blocks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graphs_of_blocks() -> Host:
    """A host whose CUDA graphs are captured around each block and not around the whole call."""
    graph = record_of("wf_plugin_execution_cuda_graph").manifest
    assert graph is not None
    around = (EffectRule(Effect("captures-graph", "block")),)
    moved = [attrs.evolve(feature, effects=around) for feature in graph.features]
    families = [f"wf_plugin_{family}" for family in ("wan", "hunyuan", "cosmos")]
    caches = [f"wf_plugin_cache_{name}" for name in ("teacache", "custom")]
    return host_of(attrs.evolve(graph, features=tuple(moved)), *families, *caches)


def codes(host: Host, model: str, request: dict[str, Any]) -> set[str]:
    try:
        host.resolve(model, request, device="h200")
    except Refused as refused:
        return {violation.code for violation in refused.refusal.violations}
    return set()


@pytest.mark.parametrize("name", ["teacache", "custom"])
def test_a_graph_of_a_block_is_refused_where_a_block_decides(name: str, graphs_of_blocks: Host) -> None:
    request = {"feature_cache": name, "cuda_graph": True}
    decided = {"WF-C010", "WF-C014"}
    for model in ("hunyuanvideo", "cosmos-predict1-7b-text2world"):
        assert decided | {"WF-C011"} <= codes(graphs_of_blocks, model, request)
    assert not decided & codes(graphs_of_blocks, "wan2.1-t2v-1.3b", request)


def test_a_goal_does_not_choose_teacache_for_a_family_on_which_no_loss_was_measured(host: Host) -> None:
    """HunyuanVideo and Cosmos have published polynomials; a clip was measured on a model of Wan alone."""
    for model, chosen in {
        "tiny-wan": True,
        "wan2.1-t2v-1.3b": True,
        "hunyuanvideo": False,
        "hunyuanvideo-1.5-t2v-480p": False,
        "cosmos-predict1-7b-text2world": False,
    }.items():
        plan = host.resolve(model, {"goal": "fast"}, device="h200")
        assert ("teacache" in plan.chosen) == chosen, model
        assert not codes(host, model, {"teacache": True}), "it can be asked for"
