"""The whole table of switches: every refusal by its code beside the legal request, and cases with their verdicts."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest

from wf_core import Host, Plan, Refused
from wf_core.resolving.resolve import resolve

FOLDER = Path(__file__).parent / "legality"
CASES = json.loads((FOLDER / "cases.json").read_text())["cases"]
CELLS = [cell for file in sorted(FOLDER.glob("*.toml")) for cell in tomllib.loads(file.read_text())["cell"]]


@cache
def host() -> Host:
    return Host.discover()


def judge(row: dict[str, Any], request: dict[str, Any], run: dict[str, Any]) -> Plan:
    model = row["model"]
    known = host().model(model)
    return host().resolve(
        model,
        request,
        run=run,
        family=None if known else row.get("family", "wan"),
        device=row.get("device", "h200"),
        world=row.get("world", 1),
        process_group=row.get("process_group"),
        facts=row.get("facts"),
    )


def size(case: dict[str, Any]) -> dict[str, Any]:
    return {"height": case["height"], "width": case["width"], "num_frames": case["frames"]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    if case["legal"]:
        judge(case, case["request"], size(case))
        return
    with pytest.raises(Refused) as refused:
        judge(case, case["request"], size(case))
    violations = refused.value.refusal.violations
    assert any({*case["involves"]} <= {*violation.involves} for violation in violations), violations


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell["id"])
def test_cell(cell: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        judge(cell, cell["request"], cell.get("run", {}))
    violations = refused.value.refusal.violations
    fitting = [violation for violation in violations if violation.code == cell["code"]]
    assert fitting, [str(violation) for violation in violations]
    assert any({*cell["involves"]} <= {*violation.involves} for violation in fitting), fitting


TWINS = [cell for cell in CELLS if "without" in cell or "instead" in cell]


@pytest.mark.parametrize("cell", TWINS, ids=lambda cell: cell["id"])
def test_the_same_request_without_what_offends_is_legal(cell: dict[str, Any]) -> None:
    request = {key: value for key, value in cell["request"].items() if key not in cell.get("without", ())}
    judge(cell, {**request, **cell.get("instead", {})}, cell.get("run", {}))


CACHE_OF_ONE_MIND = {
    "teacache": {"teacache": True},
    "magcache": {"magcache": True},
    "taylorseer": {"taylorseer": True},
    "blocktaylorseer": {"feature_cache": "blocktaylorseer"},
    "custom": {"feature_cache": "custom"},
}
SPREAD = {"sp_degree": {"sp_degree": 2}, "cfg_parallel": {"cfg_parallel": 2}}
OF_ONE_MIND = [
    *((f"{one}-{key}", {**own, **spread}) for one, own in CACHE_OF_ONE_MIND.items() for key, spread in SPREAD.items()),
    ("cfg-gate-sp_degree", {"cfg_gate_step": 0.5, "sp_degree": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    "request_", [request for _, request in OF_ONE_MIND], ids=[name for name, _ in OF_ONE_MIND]
)
def test_what_was_checked_to_decide_alike_on_all_ranks_is_legal_without_a_warning(
    request_: dict[str, Any],
) -> None:
    row = {"model": "wan2.1-t2v-1.3b", "world": 2}
    run = {"height": 480, "width": 832, "num_frames": 81}
    plan = judge(row, request_, run)
    assert plan.warnings == ()
    strict = attrs.evolve(host().catalog, strict=True)
    facts = host().facts(row["model"], run, device="h200", world=2)
    assert resolve(request_, facts, strict).warnings == ()


def test_ids_are_unique_and_every_cell_says_what_it_is_about() -> None:
    ids = [row["id"] for row in (*CASES, *CELLS)]
    assert len(ids) == len(set(ids))
    assert not [cell["id"] for cell in CELLS if not (cell["says"] and cell["code"] and cell["involves"])]


WARNED = [
    ({"peft_adapter_path": "my-lora", "offload_mode": "disk"}, 1, "WF-C042"),
    ({"cuda_graph": True, "cfg_parallel": 2}, 2, "WF-C021"),
]


@pytest.mark.parametrize(("request_", "world", "code"), WARNED, ids=[code for _, _, code in WARNED])
def test_what_nobody_has_tested_is_legal_with_a_warning(
    request_: dict[str, Any], world: int, code: str
) -> None:
    row = {"model": "wan2.1-t2v-1.3b", "world": world}
    plan = judge(row, request_, {})
    assert [(warning.code, warning.level) for warning in plan.warnings] == [(code, "untested")]
    with pytest.raises(Refused) as refused:
        judge(row, {**request_, "profile": "official"}, {})
    assert code in {violation.code for violation in refused.value.refusal.violations}


ALONE = [
    ("hunyuanvideo", {"vae_tile_size": [16, 16]}, "WF-V004 vae_tile_size is taken by Cosmos"),
    ("hunyuanvideo", {"vae_tile_stride": [16, 16]}, "WF-V004 vae_tile_stride is taken by Cosmos"),
    ("cosmos-predict1-7b-text2world", {"vae_tile_size": [16, 16]}, "WF-V003 The VAE of Cosmos Predict1"),
    ("cosmos-predict2-2b-video2world", {"vae_tile_size": [16, 16]}, ""),
]


@pytest.mark.parametrize(("model", "request_", "why"), ALONE)
def test_an_option_alone_is_answered_with_its_feature_where_that_would_help(
    model: str, request_: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused) as refused:
        judge({"model": model}, request_, {})
    [violation] = refused.value.refusal.violations
    assert violation.code == "WF-R005"
    assert violation.fix.startswith(
        f"With vae_tiling it would be refused too: {why}" if why else "Ask for it with vae_tiling"
    )
    [fix] = [fix for fix in refused.value.refusal.fixes if fix.change.set] or [None]
    assert (fix is None) == bool(why)
    if fix is not None:
        assert judge({"model": model}, fix.change.applied(request_), {}).features


OFF_ELSEWHERE = [
    ("wan2.1-t2v-1.3b", {"vae_tiling": False}),
    ("hunyuanvideo", {"vae_spatial_tiling": False}),
    ("hunyuanvideo", {"tiled": "false"}),
    ("cosmos-predict2-2b-video2world", {"fused_rope": False, "sp_degree": 1, "feature_cache": "none"}),
]


@pytest.mark.parametrize(("model", "request_"), OFF_ELSEWHERE)
def test_an_off_value_asks_for_nothing_whichever_family_wires_the_key(
    model: str, request_: dict[str, Any]
) -> None:
    assert not judge({"model": model}, request_, {}).features


ONE_VALUE_BY_TWO_NAMES = [
    {"torch_dtype": "bf16", "dit_weight_dtype": "bfloat16"},
    {"vae_spatial_tiling": True, "tiled": "true", "vae_tiled_decode": True},
    {"cfg_gate_step": 0.5, "cfg_gate_fraction": "0.5"},
    {"compile": True, "torch_compile": True},
]


@pytest.mark.parametrize(
    "request_", ONE_VALUE_BY_TWO_NAMES, ids=[" ".join(r) for r in ONE_VALUE_BY_TWO_NAMES]
)
def test_one_value_by_two_names_of_a_key_is_no_clash(request_: dict[str, Any]) -> None:
    assert len(judge({"model": "wan2.1-t2v-1.3b"}, request_, {}).features) == 1


def test_what_is_refused_for_being_untested_says_what_refuses_it() -> None:
    request = {"profile": "official", "cuda_graph": True, "cfg_parallel": 2}
    with pytest.raises(Refused) as refused:
        judge({"model": "wan2.1-t2v-1.3b", "world": 2}, request, {})
    untested = [v for v in refused.value.refusal.violations if v.level == "untested"]
    assert untested and all("profile" in v.involves and "profile=official" in v.fix for v in untested)
    assert "a warning where nothing else forbids" not in refused.value.refusal.explain()
