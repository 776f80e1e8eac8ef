"""Refusals and plans as people read them: the whole text, for one case of each kind.

To change a text on purpose, run with ``UPDATE_GOLDEN=1`` in the environment and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from wf_core.errors import Refused
from wf_core.facts import Facts
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.resolving.plan import Change, Fix, Refusal
from wf_core.resolving.resolve import resolve

from .conftest import Site

GOLDEN = Path(__file__).parent / "golden"
MODEL = Facts.of(
    {
        "model.family": "toy",
        "model.id": "toy-1b",
        "model.heads": 12,
        "model.hooked": "",
        "model.training": False,
        "device.type": "cuda",
        "process.world": 1,
        "request.profile": "none",
    },
    "test",
)

GRAPH = """
schema = 1
name = "execution-graph"
api = 1
kind = "execution-mode"
[[feature]]
name = "cuda-graph"
state = "unavailable: not implemented"
tier = "equivalent"
tolerance = "bit-identical after the warm-up"
slot = "cuda-graph"
seams = ["denoiser"]
stage = "graph"
effects = ["captures-graph@denoiser"]
evidence = [{ counter = "replays", at_least = 1 }]
[[switch]]
name = "cuda_graph"
feature = "cuda-graph"
form = "flag"
off = [false]
"""
COMPILE = """
schema = 1
name = "execution-compile"
api = 1
kind = "execution-mode"
[[feature]]
name = "compile"
tier = "equivalent"
tolerance = "rounds at fewer places"
slot = "compile"
seams = ["block"]
effects = [
    "compiles@block",
    { effect = "nests-graph@block", when = { option = "mode", in = ["reduce-overhead", "max-autotune"] } },
]
evidence = [{ counter = "compiled_calls", at_least = 1 }]
[[feature.option]]
name = "mode"
type = "choice"
choices = ["default", "reduce-overhead", "max-autotune"]
[[switch]]
name = "compile"
feature = "compile"
form = "feature"
off = [false]
[[switch]]
name = "compile_mode"
feature = "compile"
form = "option"
option = "mode"
"""
ULYSSES = """
schema = 1
name = "parallel-ulysses"
api = 1
kind = "parallel-strategy"
[[feature]]
name = "ulysses"
state = "unavailable: not implemented"
tier = "equivalent"
tolerance = "sums may round differently"
slot = "sequence-parallel"
seams = ["denoiser", "attention"]
effects = ["occupies-ranks(degree)", "splits-tokens", "collectives@attention"]
evidence = [{ counter = "exchanges", at_least = 1 }]
[[feature.option]]
name = "degree"
type = "int"
min = 2
[[feature.condition]]
fact = "model.heads"
divisible_by = { option = "degree" }
code = "TOY-X1"
reason = "sp_degree must divide the model's {value} attention heads."
[[switch]]
name = "sp_degree"
feature = "ulysses"
form = "value"
option = "degree"
off = [1, false]
"""
KERNEL = """
[[feature]]
name = "{name}"
tier = "equivalent"
tolerance = "as accurate as the stock kernel"
slot = "attention"
seams = ["attention"]
evidence = [{{ counter = "successes", at_least = 1 }}]
select = [{{ switch = "attention_backend", values = ["{name}"], groups = ["flash"], order = {order} }}]
[[feature.condition]]
fact = "device.type"
eq = "cuda"
code = "TOY-A1"
reason = "{name} runs on CUDA devices only, this is {{value}}; use sdpa."
[[feature.condition]]
fact = "run.num_frames"
ge = 5
reason = "{name} needs 5 frames, got {{value}}."
"""
KERNELS = 'schema = 1\nname = "attention-flash"\napi = 1\nkind = "attention-provider"\n' + "".join(
    KERNEL.format(name=name, order=order) for name, order in (("flash3", 1), ("flash2", 2))
)
CACHE = 'effects = ["skips-blocks@stack", "host-state@stack"]'
UNIFORM = 'effects = ["skips-blocks@stack", "host-state@stack", "rank-uniform-decision"]'


@pytest.fixture
def catalog(site: Site) -> Catalog:
    site.family()
    for name, manifest in (
        ("execution-graph", GRAPH),
        ("execution-compile", COMPILE),
        ("parallel-ulysses", ULYSSES),
        ("attention-flash", KERNELS),
    ):
        site.plugin(name, manifest)
    site.cache("cache-teacache")
    manifest = site.folder / "toyplug_cache_teacache" / "wf-plugin.toml"
    manifest.write_text(manifest.read_text().replace(CACHE, UNIFORM))
    found = discover([str(site.folder)], {})
    assert {record.state for record in found.plugins} == {"available"}
    return Catalog.of(found)


def text(request: dict[str, Any], catalog: Catalog, **facts: Any) -> str:
    """The whole answer, with the one line of a refusal."""
    changed = {name.replace("__", "."): value for name, value in facts.items()}
    try:
        return resolve(request, MODEL.with_(changed), catalog).explain() + "\n"
    except Refused as refused:
        return f"{refused.refusal.explain()}\n\nin one line:\n{refused.refusal.one_line()}\n"


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # two chains lead from the user's own keys to the clash, and what to change is the mode alone
    "three-way-conflict": ({"cuda_graph": True, "compile": True, "compile_mode": "reduce-overhead"}, {}),
    "choice-ruled-out": ({"attention_backend": "flash"}, {"device__type": "cpu"}),
    "aggregate": ({"sp_degree": 2}, {"process__world": 4}),
    "remote-model": ({"feature_cache": "teacache"}, {"model__remote": True}),
    "unknown-key": ({"feature_cach": "teacache"}, {}),
    "unknown-key-like-none": ({"qqq": 3}, {}),
    # nothing alone helps: the kernel cannot run here, and the graph would freeze the cache's decision
    "two-conflicts": (
        {"attention_backend": "flash3", "cuda_graph": True, "feature_cache": "teacache"},
        {"device__type": "cpu"},
    ),
    "option-without-its-feature": ({"compile_mode": "default"}, {}),
    "legal-with-a-warning": (
        {"feature_cache": "teacache", "sp_degree": 2, "attention_backend": "flash"},
        {"process__world": 2},
    ),
    "nothing-asked-for": ({}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_one_that_was_read(catalog: Catalog, name: str) -> None:
    request, facts = CASES[name]
    found = text(request, catalog, **facts)
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    assert found == file.read_text()


def test_every_file_belongs_to_a_case() -> None:
    assert sorted(file.stem for file in GOLDEN.glob("*.txt")) == sorted(CASES)


def test_each_chain_starts_at_the_keys_as_they_were_typed(catalog: Catalog) -> None:
    request, _ = CASES["three-way-conflict"]
    chains = [line.strip() for line in text(request, catalog).splitlines() if "->" in line]
    assert chains == [
        "cuda_graph=true -> cuda-graph -> captures-graph@denoiser",
        "compile=true, compile_mode=reduce-overhead -> compile -> nests-graph@block",
    ]


def test_a_refusal_can_be_hashed_whatever_its_changes_hold() -> None:
    change = Change(set=(("offload", [1, {"a": [2]}]),))
    refusal = Refusal({"offload": [1]}, fixes=(Fix(change, True),), nearest=change)
    assert hash(refusal) == hash(attrs.evolve(refusal))
    assert change.to_json()["set"] == {"offload": [1, {"a": [2]}]}
