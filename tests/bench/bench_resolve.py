"""Deciding and explaining requests: 50 written plugins that are all asked for, and the installed ones.

A third of the written plugins are candidates of shared names, so that there is something to choose. The peer is
python-sat on the clauses that the resolver writes for the same request.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from pysat.solvers import Minisat22
from table import Row, show, side_by_side

from wf_core import Host
from wf_core.facts import Facts
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.resolving import choosing
from wf_core.resolving.deciding import decide
from wf_core.resolving.resolve import refusal
from wf_core.resolving.solver import satisfiable

REPEAT = 25
PLUGINS = 50
SELECTORS = ("approximate_attention", "attention_backend", "feature_cache", "quantization")
FACTS = Facts.of(
    {"model.family": "toy", "model.id": "toy-1b", "model.hooked": "", "toy.number": 3, "process.world": 1},
    "bench",
)
# Harmless ones first: only the features whose numbers are in CLASHING get the second kind.
HARMLESS = ("inference-only", "changes-attention-result", "host-state@vae.decode", "alters-schedule")
CLASHING = {
    3: "captures-graph@denoiser", 9: "host-state@stack", 14: "moves-parameters", 21: "weights-as-buffers",
    27: "occupies-ranks(2)", 33: "rank-local-decision", 38: "reloads-weights", 44: "replaces-linear",
}  # fmt: skip
TYPICAL = {
    "attention_backend": "auto", "feature_cache": {"algorithm": "teacache", "threshold": 0.2}, "fuse_qkv": True,
    "fused_rope": True, "static_cross_kv": True, "fused_modulation": True, "torch_dtype": "bfloat16",
    "vae_temporal_chunk_size": 4, "matmul_precision": "high", "offload_mode": "resident",
}  # fmt: skip
CLASH = {**TYPICAL, "cuda_graph": True, "compile": True, "compile_mode": "reduce-overhead"}


def write(root: Path, clashing: bool) -> tuple[Catalog, dict[str, Any]]:
    """A catalog of 50 plugins with one feature each, and the request of all of them."""
    _plugin(
        root, "toy", 'kind = "model-family"\n[family]\nname = "toy"\ntransformer_classes = { Toy = "toy" }\n'
    )
    request: dict[str, Any] = {}
    for number in range(PLUGINS):
        name = f"toy-{number}"
        effects = [HARMLESS[number % len(HARMLESS)]]
        if clashing and number in CLASHING:
            effects.append(CLASHING[number])
        shared = number % 3 == 0 and number not in CLASHING
        selector = SELECTORS[number // 3 % len(SELECTORS)]
        text = (
            f'kind = "fusion"\n[[feature]]\nname = "{name}"\ntier = "exact"\neffects = {json.dumps(effects)}\n'
            'evidence = [{ counter = "calls", at_least = 1 }]\n'
        )
        if shared:
            names = f'values = ["{name}"], groups = ["auto"]'
            text += f'select = [{{ switch = "{selector}", {names}, order = {number} }}]\n'
            request[selector] = "auto"
        else:
            request[name.replace("-", "_")] = True
        text += '[[feature.option]]\nname = "size"\ntype = "int"\nmin = 1\ndefault = 4\n'
        text += '[[feature.condition]]\nfact = "toy.number"\nge = 2\nreason = "Too small."\n'
        text += '[[feature.condition]]\nfact = "run.num_frames"\nge = 4\nreason = "Too short."\n'
        if not shared:
            text += f'[[switch]]\nname = "{name.replace("-", "_")}"\nfeature = "{name}"\nform = "feature"\n'
        _plugin(root, name, text)
    return Catalog.of(discover([str(root)], {})), request


def _plugin(root: Path, name: str, manifest: str) -> None:
    module = "wf_plugin_" + name.replace("-", "_")
    info = root / f"{module}-1.0.dist-info"
    for folder in (root / module, info):
        folder.mkdir(parents=True)
    (root / module / "__init__.py").write_text("")
    (root / module / "wf-plugin.toml").write_text(f'schema = 1\nname = "{name}"\napi = 1\n{manifest}')
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: wf-plugin-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[wf.plugins]\n{name} = {module}\n")


def clauses_of(request: dict[str, Any], catalog: Catalog) -> list[tuple[int, ...]]:
    """The clauses that the resolver writes for a request."""
    with mock.patch.object(choosing, "prefer", wraps=choosing.prefer) as prefer:
        decide(request, FACTS, catalog)
    return list(prefer.call_args_list[0].args[0])


def by_pysat(clauses: list[tuple[int, ...]]) -> bool:
    with Minisat22(bootstrap_with=[list(clause) for clause in clauses]) as solver:
        return bool(solver.solve())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        legal, everything = write(Path(folder) / "legal", clashing=False)
        clashing, all_of_it = write(Path(folder) / "clashing", clashing=True)
    host = Host.discover()
    known = host.facts("wan2.1-t2v-14b", device="h200", world=1)
    clauses = clauses_of(all_of_it, clashing)
    refused = decide(all_of_it, FACTS, clashing)
    clash = decide(CLASH, known, host.catalog)
    assert decide(everything, FACTS, legal).legal and not refused.legal and not clash.legal
    assert decide(TYPICAL, known, host.catalog).legal and len(TYPICAL) == 10
    assert (satisfiable(clauses) is not None) == by_pysat(clauses)
    times = side_by_side(
        [
            lambda: decide(everything, FACTS, legal),
            lambda: decide(all_of_it, FACTS, clashing),
            lambda: refusal(all_of_it, refused, FACTS, clashing).explain(),
            lambda: decide(TYPICAL, known, host.catalog),
            lambda: refusal(CLASH, clash, known, host.catalog).explain(),
            lambda: satisfiable(clauses),
            lambda: by_pysat(clauses),
        ],
        REPEAT,
    )
    fifty_legal, fifty_refused, explained, typical, real_refused, own, peer = (1e3 * time for time in times)
    rows = [
        Row("decide, 50 plugins asked for, legal", fifty_legal, "ms", 15),
        Row("decide, 50 plugins asked for, refused", fifty_refused, "ms", 15),
        Row("the whole refusal of it with what to change", explained, "ms", 150),
        Row("decide, 10 keys of the installed plugins", typical, "ms", 5),
        Row("the whole refusal of 13 keys of them", real_refused, "ms", 150),
        Row(f"solver alone, {len(clauses)} clauses of the 50", own, "ms"),
        Row("peer: python-sat (minisat) on the same clauses", peer, "ms"),
    ]
    reasons = len(refused.violations)
    show(
        "Resolving",
        rows,
        f"median of {REPEAT}, in turns; the refusal has {reasons} reasons; nothing is cached",
    )


if __name__ == "__main__":
    main()
