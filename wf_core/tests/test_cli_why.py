"""``wf why``: the verdict with its grounds, and the ways to ask for a feature. Toy plugins only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from wf_core.host import Host
from wf_core.manifests.conditions import Condition
from wf_core.resolving.asking import requests_for, together
from wf_core.resolving.naming import any_model, find
from wf_core.resolving.why import describe

from .conftest import Site
from .toy_features import OTHER_FAMILY, clashing, runner


@pytest.fixture
def wf(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    return runner(site, monkeypatch)


@pytest.fixture
def toys(site: Site, toy_checkpoint: Path) -> Site:
    return clashing(site, toy_checkpoint)


def test_why_tells_every_condition_with_its_fact_and_where_that_came_from(toys: Site, wf: Any) -> None:
    result = wf("why", "deep")
    assert result.exit_code == 2
    assert "deep: refused" in result.stdout
    assert "taken: the first model of the first family that supports it" in result.stdout
    assert "unmet   WF-F001  too deep (it is 30)" in result.stdout
    assert "model.layers is 30 (" in result.stdout
    assert "transformer/config.json)" in result.stdout
    assert "leave out deep" in result.stdout
    assert result.stderr.startswith("wf: refused: WF-F001")
    assert result.stderr.count("\n") == 1
    answer = json.loads(wf("why", "deep", "--model", "tiny", "--json").stdout)
    [condition] = [c for c in answer["features"][0]["conditions"] if c["code"] == "WF-F001"]
    assert condition["state"] == "unmet"
    [looked_at] = condition["looked_at"]
    assert looked_at.pop("source").endswith("transformer/config.json")
    assert looked_at == {"name": "model.layers", "known": True, "value": 30}
    assert (answer["legal"], answer["state"], answer["model"], answer["model_taken"]) == (
        False,
        "refused",
        "tiny",
        "",
    )


def test_why_of_a_condition_that_nothing_decides(toys: Site, wf: Any) -> None:
    result = wf("why", "deep", "--model", "some/id", "--family", "toy")
    assert result.exit_code == 0
    assert "unknown WF-F001  too deep" in result.stdout
    assert "model.layers is not known" in result.stdout


def test_why_two_cannot_be_used_together(toys: Site, wf: Any) -> None:
    result = wf("why", "a", "toy_graph", "--model", "tiny")
    assert result.exit_code == 2
    for words in (
        "a and toy-graph: refused; toy-graph cannot be activated: not implemented",
        "WF-C010",
        "a=true -> a -> host-state@stack",
        "toy_graph=true -> toy-graph -> captures-graph@denoiser",
        "alone legal",
        "leave out a",
    ):
        assert words in result.stdout
    answer = json.loads(wf("why", "a", "toy_graph", "--model", "tiny", "--json").stdout)
    assert {"WF-C010", "WF-C012"} <= {violation["code"] for violation in answer["between"]}
    assert answer["request"] == {"a": True, "toy_graph": True}


def test_why_asks_the_rule_table_by_a_switch_where_two_values_of_one_key_collide(toys: Site, wf: Any) -> None:
    answer = json.loads(wf("why", "a", "b-2", "--model", "tiny", "--json").stdout)
    assert [violation["code"] for violation in answer["between"]] == ["WF-C001"]


def test_why_of_two_that_are_both_refused_alone_tells_nothing_between_them(toys: Site, wf: Any) -> None:
    result = wf("why", "toy-ranks", "deep", "--model", "tiny")
    assert result.exit_code == 2
    assert "nothing stands between them" in result.stdout
    assert result.stdout.count("alone refused") == 2


def test_why_tells_the_number_of_processes_that_would_do(toys: Site, wf: Any) -> None:
    result = wf("why", "toy-degree", "--model", "tiny")
    assert result.exit_code == 2
    assert "with 2 processes it is legal (--world 2)" in result.stdout
    assert wf("why", "toy-degree", "--model", "tiny", "--world", "2").exit_code == 0


@pytest.mark.parametrize("name", ["b_2", "b-2", "B-2", "cache-b-2"])
def test_a_feature_answers_to_all_its_names(toys: Site, wf: Any, name: str) -> None:
    result = wf("why", name, "--model", "tiny", "--json")
    assert result.exit_code == 0
    assert [feature["name"] for feature in json.loads(result.stdout)["features"]] == ["b_2"]


def test_two_names_of_one_feature_are_one(toys: Site, wf: Any) -> None:
    answer = json.loads(wf("why", "toy-ranks", "toy_degree", "--world", "2", "--json").stdout)
    assert len(answer["features"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["deap"], "did you mean deep"),
        (["a", "toy_grap"], "did you mean toy"),
        (["a", "a", "a"], "one or two features, not 3"),
        ([], "Missing argument"),
        (["attention_backend"], "takes one of several features: name one of"),
        (["a", "tiny"], "is a model and no feature, switch or value: give it with --model"),
        (["a", "--model", "tinny"], "did you mean tiny"),
        (["a", "--device", "h20"], "did you mean h200"),
    ],
)
def test_bad_names_are_exit_code_2(toys: Site, wf: Any, arguments: list[str], words: str) -> None:
    result = wf("why", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_without_a_family_there_is_no_model_to_judge_for(site: Site, wf: Any) -> None:
    site.cache("cache-a")
    result = wf("why", "a")
    assert result.exit_code == 2
    assert "no installed plugin provides a model family" in result.stderr


def test_a_name_of_two_plugins_is_told_with_what_to_block(toys: Site, wf: Any) -> None:
    toys.cache("cache-other", feature="a")
    result = wf("why", "a", "--model", "tiny")
    assert result.exit_code == 2
    assert "WF_BLOCK=" in result.stderr


def test_the_model_that_is_taken(toys: Site) -> None:
    catalog = Host.discover([str(toys.folder)]).catalog
    chosen = any_model(["a", "toy-degree"], catalog)
    assert (chosen.name, chosen.family) == ("tiny", None)
    assert "supports both" in chosen.why
    toys.plugin("other", 'schema = 1\nname = "other"\napi = 1\nkind = "model-family"\n' + OTHER_FAMILY)
    toys.cache("cache-far", feature="far")
    manifest = toys.folder / "toyplug_cache_far" / "wf-plugin.toml"
    manifest.write_text(manifest.read_text().replace('["toy"]', '["other"]'))
    catalog = Host.discover([str(toys.folder)]).catalog
    chosen = any_model(["far"], catalog)
    assert (chosen.name, chosen.family) == ("any other model", "other")
    assert find("toy-degree", catalog).name == "toy-ranks"


# --- how features are asked for ------------------------------------------------------------------------------------


def test_the_ways_to_ask_for_a_feature(toys: Site) -> None:
    catalog = Host.discover([str(toys.folder)]).catalog
    ways = {offer.feature.name: requests_for(offer, catalog) for offer in catalog.features()}
    assert ways["a"] == ({"a": True}, {"feature_cache": "a"})
    assert ways["toy-graph"] == ({"toy_graph": True},)
    assert ways["toy-ranks"] == ({"toy_degree": 2},)
    assert together(({"k": 1}, {"own": True}), ({"k": 2},), str) == {"own": True, "k": 2}
    assert together(({"k": 1},), ({"k.x": 2},), str) is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"fact": "device.sm", "in": [90, 100]}, "device.sm is one of 90, 100"),
        ({"fact": "package.x", "present": True}, "package.x is there"),
        (
            {"option": "n", "le": {"fact": "model.layers"}, "divisible_by": 2},
            "n <= model.layers and n is a multiple of 2",
        ),
        ({"any_of": [{"fact": "a", "eq": 1}, {"fact": "b", "ne": "x"}]}, "a is 1 or b is not x"),
    ],
)
def test_a_condition_in_words(data: dict[str, Any], words: str) -> None:
    assert describe(Condition.parse({**data, "reason": "r"})) == words
