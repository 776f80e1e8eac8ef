"""A plugin that nobody here knows brings an effect and rules of its own: they count without a change of the core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.plugins import write_plugin
from wf_core import Host, Refused
from wf_core.plugins.discovery import discover
from wf_core.resolving.rules import core_rules

MODEL = "wan2.1-t2v-1.3b"
PAIR, NEED, SLOT = "ACME-1", "ACME-2", "ACME-3"
MANIFEST = """
kind = "fusion"
summary = "Rewrites the weights' layout while the model runs."

[[effect]]
name = "rewrites-layout"
doc = "The layout of weights changes between calls."

[[rule]]
code = "ACME-1"
level = "forbid"
pair = ["captures-graph", "rewrites-layout"]
scope = "inside"
reason = "A replayed graph would read the weights in the layout that they had when it was captured."

[[rule]]
code = "ACME-2"
level = "forbid"
effect = "rewrites-layout"
needs = { fact = "device.type", eq = "cuda" }
reason = "The layout can be rewritten on CUDA devices only, and this is {value}."

[[rule]]
code = "ACME-3"
level = "untested"
slot = "weight-layout"
reason = "Two features in the place {slot} have not been tested together."

[[feature]]
name = "relayout"
tier = "exact"
seams = ["denoiser"]
slot = "weight-layout"
effects = [
    { effect = "rewrites-layout@block", when = { option = "deep", eq = true } },
    { effect = "rewrites-layout@vae.decode", when = { option = "deep", ne = true } },
    "training-safe",
]
evidence = [{ counter = "calls", at_least = 1 }]
example = { relayout = true }

[[feature.option]]
name = "deep"
type = "bool"
default = true

[[switch]]
name = "relayout"
feature = "relayout"
form = "feature"
shorthand = "deep"
off = [false]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_plugin(
        tmp_path / "site", "fusion-acme", MANIFEST, "raise ImportError('not needed to judge')\n"
    )


@pytest.fixture
def acme(site: Path) -> Host:
    host = Host(discover([str(site), *sys.path]).require_sound())
    assert "fusion-acme" not in {record.name for record in host.plugins if record.state != "available"}
    return host


def refused(host: Host, request: dict[str, Any], device: str = "h200") -> dict[str, Any]:
    with pytest.raises(Refused) as caught:
        host.resolve(MODEL, request, device=device)
    return {violation.code: violation for violation in caught.value.refusal.violations}


def test_the_core_knows_nothing_of_it() -> None:
    assert not {PAIR, NEED, SLOT} & {rule.code for rule in core_rules()}
    assert Host.discover().discovery.plugin("fusion-acme") is None


def test_a_pair_with_an_effect_of_the_core_is_refused_with_its_code_and_both_chains(acme: Host) -> None:
    found = refused(acme, {"cuda_graph": True, "relayout": True})
    assert set(found) == {PAIR}
    violation = found[PAIR]
    assert violation.reason.startswith("A replayed graph would read the weights in the layout")
    assert [str(chain) for chain in violation.chains] == [
        "cuda_graph=true -> cuda-graph -> captures-graph@denoiser",
        "relayout=true -> relayout -> rewrites-layout@block",
    ]
    assert {"cuda_graph", "relayout"} <= {*violation.involves}


def test_without_one_of_them_it_is_legal_and_so_it_is_outside_the_captured_seam(acme: Host) -> None:
    for request in (
        {"relayout": True},
        {"cuda_graph": True},
        {"cuda_graph": True, "relayout": {"deep": False}},
    ):
        assert acme.resolve(MODEL, request, device="h200").features


def test_what_its_effect_needs_is_a_condition_of_the_feature(acme: Host) -> None:
    found = refused(acme, {"relayout": True}, device="cpu")
    assert set(found) == {NEED}
    assert found[NEED].reason == "The layout can be rewritten on CUDA devices only, and this is cpu."


def test_where_the_plugin_is_blocked_its_rules_are_too(site: Path) -> None:
    host = Host(discover([str(site), *sys.path], {"WF_BLOCK": "fusion-acme"}))
    codes = {rule.code for rule in host.catalog.rules(core_rules())}
    assert not {PAIR, NEED, SLOT} & codes
    assert set(refused(host, {"cuda_graph": True, "relayout": True})) == {"WF-P001"}


def test_a_second_plugin_shares_the_effect_by_introducing_it_too(tmp_path: Path, site: Path) -> None:
    """One word means one thing: the rule of one is about the features of both. The slot's rule is only a warning."""
    text = MANIFEST.replace("relayout", "reorder").replace("ACME", "BMCE")
    other = write_plugin(tmp_path / "other", "fusion-bmce", text, "")
    host = Host(discover([str(site), str(other), *sys.path]).require_sound())
    found = refused(host, {"cuda_graph": True, "reorder": True})
    assert set(found) == {PAIR, "BMCE-1"}


def test_wf_resolve_tells_it(site: Path) -> None:
    def wf(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [str(Path(sys.executable).with_name("wf")), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=120
        )

    asked = ("resolve", MODEL, "--device", "h200", "-s", "relayout=true")
    answer = wf(*asked, "-s", "cuda_graph=true", "--json")
    assert answer.returncode == 2
    [violation] = json.loads(answer.stdout)["violations"]
    assert violation["code"] == PAIR
    assert violation["chains"][1] == "relayout=true -> relayout -> rewrites-layout@block"
    text = wf(*asked, "-s", "cuda_graph=true")
    assert text.returncode == 2
    assert PAIR in text.stdout
    assert "relayout=true -> relayout -> rewrites-layout@block" in text.stdout
    assert wf(*asked).returncode == 0
    shown = wf("show", "relayout")
    assert "rewrites-layout@block (sometimes)" in shown.stdout
