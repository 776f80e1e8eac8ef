"""Whatever comes from outside: it is read, or refused in one line; nothing hangs, and nothing that it names is run."""

from __future__ import annotations

import copy
import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hostile import FACTS, SEEDS, VALUES, examples, mutated, said, toml_document, within
from support.plugins import write_plugin
from wf_core import BadInput, Host, Refused
from wf_core.cli.list_plugins import listing
from wf_core.cli.show import describe
from wf_core.manifests.manifest import Manifest, ManifestError
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import STATES, discover
from wf_core.resolving.rejudging import not_activatable, rejudge, rejudge_rules
from wf_core.resolving.resolve import resolve
from wf_core.resolving.why import describe as asked_in_words

ROOT = Path(__file__).resolve().parents[1]
MANIFESTS = {path.parent.name: path for path in sorted(ROOT.glob("**/src/*/wf-plugin.toml"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("hostile"))


# --- manifests -------------------------------------------------------------------------------------------------------

RICH = """
schema = 1
name = "rich"
api = 1
kind = "fusion"
packages = { some-package = ">=1" }
[[feature]]
name = "rich"
tier = "approximate"
tolerance = "t"
slot = "s"
seams = ["stack"]
stage = "cache"
before = ["y"]
after = ["z"]
effects = ["melts(o)@stack", { effect = "compiles", when = { option = "c", eq = "a" } }]
evidence = [{ counter = "n", at_least = 1 }, { counter = "m", equals_counter = "n" }]
goals = ["exact", { goal = "memory", order = 3, set = { rich = true } }]
example = { rich = 2 }
trial = { rich = 3 }
bound = [{ measure = "psnr", value = 30.0, device = "cuda", dtype = "bfloat16" }]
file = [{ option = "p", facts = { "rich.rank" = { tensor = "w", axis = 0 } } }]
option = [
    { name = "o", type = "int", min = 1, max = 9, default = 2, default_with = [{ effect = "compiles", value = 3 }] },
    { name = "c", type = "choice", choices = ["a", "b"], spellings = { alpha = "a" }, sets = "model.dtype" },
    { name = "p", type = "path" }, { name = "l", type = "floats", length = 2 }, { name = "x", type = "mapping" },
]
[[feature.select]]
switch = "attention_backend"
values = ["rich"]
groups = ["auto"]
suffix = ".rich"
suffix_option = "p"
order = [{ order = 5, when = { fact = "device.sm", ge = 80 } }, { order = 50 }]
[[feature.condition]]
any_of = [{ fact = "model.id", in_table = "t" }, { option = "o", le = { fact = "device.sm" } }]
reason = "r {value}"
code = "RICH-2"
[[switch]]
name = "rich"
feature = "rich"
form = "value"
option = "o"
off = [0]
aliases = ["wealthy"]
[[effect]]
name = "melts"
doc = "d"
numbers = 1
[[rule]]
code = "RICH-1"
level = "forbid"
effect = "melts"
aggregate = "product"
needs = { option = "total", eq = { fact = "process.world" } }
reason = "product {total}"
[[rule]]
code = "RICH-3"
level = "forbid"
pair = ["melts", "compiles"]
scope = "inside"
reason = "r"
involves = ["rich"]
[table.t]
keys = ["a", 1]
"""
DATA = {name: tomllib.loads(path.read_text()) for name, path in MANIFESTS.items()} | {
    "rich": tomllib.loads(RICH)
}


def judged(root: Path) -> None:
    """Everything that is done with a manifest before a session is asked for."""
    discovery = discover([str(root)], {})
    (record,) = discovery.plugins
    assert record.state in STATES and len(record.reason) < 5000 and "\n" not in record.reason
    catalog = Catalog.of(discovery)
    json.dumps(listing(list(discovery.plugins)))
    catalog.packages()
    for offer in catalog.features():
        json.dumps(describe(offer))
        for condition in offer.feature.conditions:
            asked_in_words(condition)
        for request in (offer.feature.example, dict.fromkeys(offer.keys(), 5), {"goal": "fast"}):
            with suppress(BadInput, Refused):
                json.dumps(resolve(request, FACTS, catalog).to_json())


@examples(250)
@given(name=st.sampled_from([*sorted(DATA), *["rich"] * 30]), seed=SEEDS)
def test_a_damaged_manifest(folder: Path, name: str, seed: int) -> None:
    plugin = str(DATA[name]["name"])
    root = folder / plugin
    if not root.exists():
        write_plugin(root, plugin, "", "raise SystemExit('a manifest was enough')")
    path = next(root.glob("*/wf-plugin.toml"))
    path.write_text(toml_document(mutated(DATA[name], seed, VALUES[:-1])), encoding="utf-8")
    with within():
        with suppress(ManifestError):
            Manifest.load(path)
        judged(root)


@examples(150)
@given(data=st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")))
def test_a_manifest_of_anything(folder: Path, data: bytes) -> None:
    path = folder / "wf-plugin.toml"
    path.write_bytes(data)
    with pytest.raises(ManifestError) as refused:
        Manifest.load(path)
    said(refused.value)


HEAD = 'schema = 1\nname = "x"\napi = 1\nkind = "fusion"\n'
BOMBS = {
    "a long dotted key": HEAD + ".".join("a" * 50_000) + " = 1",
    "a long quoted key": HEAD + "[" + ' . '.join(['"a"'] * 50_000) + "]",
    "deep tables": HEAD + "[" + ".".join("a" * 60) + "]\nx = " + "[" * 40 + "]" * 40,
    "a number of 400 digits": HEAD + f"x = {10**400}",
    "names of 200 kB": HEAD + f'[[feature]]\nname = "{"x" * 200_000}"\n'
    'tier = "exact"\nevidence = [{ counter = "n" }]\n[[switch]]\nname = "s"\nform = "flag"\n'
    f'feature = "{"x" * 200_001}"\n',
    "more than a megabyte": HEAD + "#" * (1 << 20),
    "a table above the folder": HEAD + '[table.t]\nfile = "../../../etc/hostname"\n',
    "a table that never ends": HEAD + '[table.t]\nfile = "/dev/zero"\n',
    "a table from a pipe": HEAD + '[table.t]\nfile = "pipe"\n',
    "a table without a bottom": HEAD + '[table.t]\nfile = "deep.json"\n',
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_manifest_that_is_a_bomb(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "wf-plugin.toml").write_text(BOMBS[name])
    with pytest.raises(ManifestError) as refused, within(2):
        Manifest.load(tmp_path / "wf-plugin.toml")
    said(refused.value)


# --- what is installed -----------------------------------------------------------------------------------------------

ENTRIES = [
    b"", b"=", b"a", b"a = ", b"a = .b", b"a = /etc", b"a = ../x", b"a = a/b:c", b"a\0 = b\0", b"a = x:y.z", b"= x",
    b"\xff\xfe = x", "ü = ü".encode(), b"a = b" * 5000, b"a = x [extra]", b"a = x\nb = y", b"[wf.plugins",
]  # fmt: skip
METADATA = [
    b"", b"\xff\xfeN\0a\0", b"Name: x", b"Name: \xff\nVersion: 1", b"Name: x\nVersion: " + b"1" * 9000, b"Name x",
    b"Name: ../../x\nVersion: \x1b[2J", b"Name: " + b"x" * 9000 + b"\nVersion: 1", b"\n\nName: x",
]  # fmt: skip


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("fields", METADATA)
def test_odd_metadata_of_a_distribution(tmp_path: Path, entries: bytes, fields: bytes) -> None:
    info = tmp_path / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(fields)
    (info / "entry_points.txt").write_bytes(b"[wf.plugins]\n" + entries + b"\n")
    with within():
        records = discover([str(tmp_path)], {}).plugins
    assert all(record.state != "available" for record in records)
    json.dumps(listing(list(records)))


# --- plans -----------------------------------------------------------------------------------------------------------

ASKED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    (
        "tiny-wan",
        {"feature_cache": "teacache", "vae_temporal_chunk_size": 2, "attention_backend": "auto"},
        {},
    ),
    ("wan2.1-t2v-14b", {"goal": "fast"}, {"device": "h200"}),
    ("hunyuanvideo", {"attention_backend": "sdpa", "vae_tiling": True}, {"device": "h200"}),
)


@pytest.fixture(scope="module")
def plans(host: Host) -> list[dict[str, Any]]:
    return [
        json.loads(json.dumps(host.resolve(model, request, **more).to_json()))
        for model, request, more in ASKED
    ]


def with_its_hash(host: Host, data: Any) -> Any:
    """The plan as somebody would change it who knows how the hash is made."""
    with suppress(Refused):
        try:
            host.load_plan(data)
        except BadInput as error:
            _, found, rest = str(error).partition(", its contents have ")
            if found:
                return {**data, "hash": rest[:16]}
    return data


@examples(500)
@given(which=st.integers(0, 2), seed=SEEDS)
def test_a_damaged_plan(host: Host, plans: list[dict[str, Any]], which: int, seed: int) -> None:
    with within():
        data = with_its_hash(host, mutated(plans[which], seed))
        try:
            plan = host.load_plan(data)
        except (BadInput, Refused) as error:
            said(error)
            return
        plan.explain()
        json.dumps(plan.to_json())
        facts = FACTS.with_({"model.family": plan.family}, source="test")
        tuple(not_activatable(plan)), rejudge(plan, facts, final=True)
        rejudge_rules(plan, facts, host.catalog)


def changes(plan: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a plan could be made to say so that something is not checked any more."""
    feature = plan["features"][0]
    for key, value in (("effects", []), ("conditions", []), ("evidence", []), ("seams", []), ("slot", "other"),
                       ("not_activatable", "x"), ("tier", "exact"), ("effects", ["compiles"])):  # fmt: skip
        yield f"{key} of a feature", {**plan, "features": [{**feature, key: value}, *plan["features"][1:]]}
    options = {**feature["options"], "max_skip": -1}
    yield "an option", {**plan, "features": [{**feature, "options": options}, *plan["features"][1:]]}
    yield "a feature twice", {**plan, "features": [feature, *plan["features"]]}
    yield "a key of the host", {**plan, "host_keys": {**plan["host_keys"], "on_ineligible": "ignore"}}
    yield "no keys of the host", {**plan, "host_keys": {}}
    yield "no versions", {**plan, "versions": {}}
    yield "another operator", json.loads(json.dumps(plan).replace('["present"', '["os.system"', 1))
    yield "a model that cannot be opened", {**plan, "not_activatable": [plan["family"]]}


def test_a_plan_that_leaves_out_what_would_be_checked(host: Host, plans: list[dict[str, Any]]) -> None:
    plan = next(p for p in plans if p["features"] and p["features"][0]["name"] == "teacache") if (
        plans[0]["features"][0]["name"] != "teacache") else plans[0]  # fmt: skip
    assert host.load_plan(plan)
    for what, changed in changes(plan):
        with pytest.raises((BadInput, Refused)):
            host.load_plan(with_its_hash(host, copy.deepcopy(changed)))
            pytest.fail(what)
