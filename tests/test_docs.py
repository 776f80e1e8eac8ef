"""The pages say what is there: the generated ones are up to date, and nothing that a user can type is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wf_core import Host, data
from wf_core.cli import COMMANDS
from wf_core.manifests.conditions import JOINS, OPERATORS
from wf_core.manifests.effects import vocabulary
from wf_core.manifests.vocabulary import GOALS, SEAMS
from wf_core.names import switch_key
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import PluginRecord
from wf_core.resolving.request import parse_request
from wf_core.resolving.rules import core_rules

ROOT = Path(__file__).resolve().parents[1]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def left_out(names: Any, name: str) -> list[str]:
    """The names that do not stand on a page as they are typed."""
    names, text = set(names), page(name)
    assert names, "nothing to look for"
    return sorted(word for word in names if f"`{word}`" not in text)


@pytest.fixture(scope="module")
def ours(host: Host) -> list[PluginRecord]:
    """The installed plugins that are of this repository."""
    records = [r for r in host.plugins if Path(r.location).resolve().is_relative_to(ROOT) and r.manifest]
    assert len(records) == len([*ROOT.glob("plugins/*/src/wf_plugin_*"), *ROOT.glob("wf_plugin_*/src")])
    return records


@pytest.fixture(scope="module")
def features(ours: list[PluginRecord]) -> list[Any]:
    return [feature for record in ours if record.manifest for feature in record.manifest.features]


def test_the_generated_files_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    # What a page says of models and devices must not depend on where it is written.
    elsewhere = {**os.environ, "WORLD_SIZE": "4", "RANK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=elsewhere)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_in_the_readme(command: str) -> None:
    assert f"wf {command}" in (ROOT / "README.md").read_text()


def test_every_page_is_reached_from_another() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    pages["README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
    alone = [
        name
        for name in pages
        if name != "README.md"
        and not any(f"{name})" in text for other, text in pages.items() if other != name)
    ]
    assert alone == []
    assert "(docs/authors/README.md)" in pages["README.md"]  # from which test_author_docs.py goes on


# --- what a user can type ----------------------------------------------------------------------------------------


def test_every_request_key_is_documented(ours: list[PluginRecord], features: list[Any]) -> None:
    table = data.table("selectors")
    keys = {row["name"] for row in (*table["selector"], *table["host"])}
    keys |= {
        name
        for record in ours
        if record.manifest
        for switch in record.manifest.switches
        for name in (switch.name, *switch.aliases)
    }
    assert left_out(keys, "switches") == []
    values = {v for f in features for select in f.selects for v in (*select.values, *select.groups)}
    values |= {off for row in table["selector"] for off in row["off"]} | set(GOALS)
    assert left_out(values, "switches") == []


def test_every_feature_and_plugin_is_documented(ours: list[PluginRecord], features: list[Any]) -> None:
    names = {feature.name for feature in features}
    assert left_out(names, "plugins") == []
    assert left_out(names, "switches") == []
    assert left_out(names, "families") == []
    assert left_out({n for r in ours for n in (r.name, r.distribution)}, "plugins") == []


def test_every_model_and_machine_is_documented(host: Host, ours: list[PluginRecord]) -> None:
    models = [model for record in ours if record.manifest for model in record.manifest.models]
    assert left_out({name for model in models for name in (model.name, *model.aliases)}, "models") == []
    assert left_out(host.catalog.family_names(), "models") == []
    table = data.table("devices")
    assert (
        left_out({*table["devices"], *table["packages"]["any"], *table["packages"]["cuda"]}, "models") == []
    )


# --- what a refusal says -----------------------------------------------------------------------------------------


def test_every_code_is_documented(ours: list[PluginRecord], features: list[Any]) -> None:
    manifests = [record.manifest for record in ours if record.manifest]
    families = [manifest.family for manifest in manifests if manifest.family]
    rules = [*core_rules(), *(rule for manifest in manifests for rule in manifest.rules)]
    conditions = [c for owner in (*features, *families) for c in owner.conditions if c.code]
    conditions += [c for feature in features for c in feature.inert if c.code]
    codes = {row["code"] for row in data.table("codes")["code"]}
    assert left_out(codes | {x.code for x in (*rules, *conditions)}, "rules") == []
    text = page("rules").replace("\\|", "|").replace("&lt;", "<").replace("&amp;", "&")
    assert [x.code for x in (*rules, *conditions) if x.reason not in text] == []


def test_every_word_of_rules_and_conditions_is_documented(ours: list[PluginRecord]) -> None:
    own = {w.name: w for r in ours if r.manifest for w in r.manifest.effects}
    effects = {f"{w.name}(n)" if w.numbers else w.name for w in (*vocabulary().values(), *own.values())}
    assert left_out({*effects, *SEAMS, *OPERATORS, *JOINS}, "rules") == []


# --- the table of what is not installed ---------------------------------------------------------------------------


def test_known_switches_are_those_of_the_plugins_here(ours: list[PluginRecord]) -> None:
    known = data.table("known_switches")
    switches: dict[str, set[str]] = {}
    values: dict[str, dict[str, set[str]]] = {}
    for record in ours:
        assert record.manifest is not None
        for switch in record.manifest.switches:
            for name in (switch.name, *switch.aliases):
                switches.setdefault(name, set()).add(record.distribution)
        for select in (select for feature in record.manifest.features for select in feature.selects):
            for value in (*select.values, *select.groups):
                brought = values.setdefault(select.switch, {}).setdefault(switch_key(value).lower(), set())
                brought.add(record.distribution)
    assert {name: {*who.split(" or ")} for name, who in known["switch"].items()} == switches
    found = {
        key: {value: {*who.split(" or ")} for value, who in row.items()}
        for key, row in known["value"].items()
    }
    assert found == values


@pytest.mark.parametrize(
    ("request_", "fix"),
    [
        ({"fuse_qkv": True}, "Install wf-plugin-fused-wan."),
        ({"torch-dtype": "bfloat16"}, "Install wf-plugin-execution-numerics."),
        ({"quantization": "fp8"}, "Install wf-plugin-quant-fp8."),
        ({"offload_mode": "async-block"}, "Install wf-plugin-placement-offload."),
        ({"vae_tile_size": [8, 8]}, "Install wf-plugin-vae-tiling or wf-plugin-vae-wan."),
    ],
)
def test_where_nothing_is_installed_a_key_is_told_with_its_distribution(
    request_: dict[str, Any], fix: str
) -> None:
    [problem] = parse_request(request_, Catalog(())).problems
    assert (problem.code, problem.fix) == ("WF-R008", fix)
