"""What ``wf show`` and ``wf list-plugins`` say of declared-only features, families, models, and how wide they are."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from wf_core.cli import main

from .conftest import CACHE_MANIFEST, FAMILY_MANIFEST, Site

FEATURE = """
state = "unavailable: not written"
before = ["other"]
example = { good = { threshold = 0.5 } }
goals = ["fast", { goal = "memory", set = { good = true } }]
"""
OPTION = """
[[feature.option]]
name = "weights"
type = "path"
doc = "A long explanation of a file that is looked into, which goes on for so long that it takes more than a line."
default_with = [{ effect = "compiles", value = "other.safetensors" }]
[[feature.file]]
option = "weights"
facts = { "adapter.rank" = { tensor = "lora_A.weight", axis = 0 } }
"""
MODELS = """
[[model]]
name = "toy-remote"
family = "toy"
remote = true
[[model]]
name = "toy-profile"
family = "toy"
aliases = ["Org/Toy"]
summary = "a profile"
[model.profile]
pipeline = "ToyPipeline"
dtype = "bfloat16"
parameters = 1234567
config.transformer = { class = "ToyTransformer", num_layers = 3 }
official = { num_inference_steps = 50, sizes = [[64, 64]] }
[[model]]
name = "toy-files"
family = "toy"
path = "checkpoint"
"""


@pytest.fixture
def wf(site: Site, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(site.folder)])
    text = CACHE_MANIFEST.format(name="cache-good", api=1, feature="good", switch="good", more=OPTION)
    text = text.replace('slot = "feature-cache"', f'slot = "feature-cache"{FEATURE}')
    site.plugin("cache-good", text.replace('values = ["good"]', 'values = ["good"], groups = ["any"]'))
    state = 'name = "toy"\nstate = "unavailable: not written"\ntransformer'
    site.plugin("toy", FAMILY_MANIFEST.replace('name = "toy"\ntransformer', state) + MODELS)

    def run(*arguments: str, **environ: str) -> Result:
        return CliRunner().invoke(main, list(arguments), env=environ, catch_exceptions=False)

    return run


def test_show_tells_what_a_declared_feature_declares(wf: Any) -> None:
    [feature] = json.loads(wf("show", "good", "--json").stdout)["features"]
    assert (feature["state"], feature["reason"]) == ("unavailable", "not written")
    assert feature["declared_only"] == "not written"
    assert feature["before"] == ["other"]
    assert feature["example"] == {"good": {"threshold": 0.5}}
    assert feature["goals"] == [
        {"goal": "fast", "adds": {"good": {"threshold": 0.5}}},
        {"goal": "memory", "adds": {"good": True}},
    ]
    assert feature["files"] == [
        {"option": "weights", "facts": [{"name": "adapter.rank", "tensor": "lora_A.weight", "axis": 0}]}
    ]
    assert feature["switches"][0]["groups"] == ["any"]
    assert feature["options"][-1]["default_with"] == [{"effect": "compiles", "value": "other.safetensors"}]


def test_the_text_says_the_same(wf: Any) -> None:
    text = " ".join(wf("show", "good").stdout.split())
    for words in (
        "unavailable: not written; a request can be judged, and not run",
        "example -s 'good={\"threshold\": 0.5}'",
        "memory adds -s good=true",
        "before other",
        "feature_cache=good | any any: shared with others",
        "adapter.rank is the size of lora_A.weight along axis 0",
        "Beside compiles the default is other.safetensors.",
    ):
        assert words in text


@pytest.mark.parametrize(
    "arguments", [("list-plugins",), ("show", "good"), ("show", "toy"), ("show", "toy-profile")]
)
def test_lines_fit_into_80_columns_or_the_terminal(wf: Any, arguments: tuple[str, ...]) -> None:
    for columns, width in (("", 80), ("60", 60), ("200", 120)):
        lines = wf(*arguments, COLUMNS=columns).stdout.splitlines()
        assert len(lines) > 3
        assert [line for line in lines if len(line) > width] == []


def test_show_a_family_by_its_name(wf: Any) -> None:
    answer = json.loads(wf("show", "toy", "--json").stdout)
    assert answer["features"] == answer["models"] == []
    [family] = answer["families"]
    assert (family["name"], family["state"], family["reason"]) == ("toy", "unavailable", "not written")
    assert family["models"] == ["toy-remote", "toy-profile", "toy-files"]
    assert "its models can be judged, and not opened" in " ".join(wf("show", "toy").stdout.split())


@pytest.mark.parametrize("name", ["toy-profile", "org/toy", "Toy-Profile"])
def test_show_a_model_by_its_name_or_alias(wf: Any, name: str) -> None:
    [model] = json.loads(wf("show", name, "--json").stdout)["models"]
    assert (model["known_by"], model["family"], model["parameters"]) == ("profile", "toy", 1234567)
    assert model["configs"]["transformer"]["num_layers"] == 3
    text = wf("show", name).stdout
    for words in ("Org/Toy", "1,234,567 parameters, bfloat16", "num_inference_steps=50", "num_layers=3"):
        assert words in text


def test_a_remote_model_says_that_nothing_runs_here(wf: Any) -> None:
    assert "remote (served by its publisher's API" in wf("show", "toy-remote").stdout


def test_an_unknown_name_gets_the_nearest_of_all_kinds(wf: Any) -> None:
    for name, near in (("goood", "good"), ("toy-profil", "toy-profile"), ("toi", "toy")):
        result = wf("show", name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"did you mean {near}" in result.stderr


def test_the_listing_tells_states_and_models_beside_the_documented_keys(wf: Any) -> None:
    plugins = {
        plugin["name"]: plugin for plugin in json.loads(wf("list-plugins", "--json").stdout)["plugins"]
    }
    assert plugins["toy"]["state"] == "available"
    assert plugins["toy"]["families"] == [{"name": "toy", "state": "unavailable", "reason": "not written"}]
    assert plugins["toy"]["models"] == ["toy-remote", "toy-profile", "toy-files"]
    assert [model["known_by"] for model in plugins["toy"]["model_details"]] == ["remote", "profile", "files"]
    assert plugins["cache-good"]["families"] == []
    assert plugins["cache-good"]["features"][0]["state"] == "unavailable"
    text = wf("list-plugins").stdout
    for words in (
        "unavailable (not written): good",
        "family toy (unavailable: not written)",
        "remote models: toy-remote",
        "profiles: toy-profile",
        "models: toy-files",
    ):
        assert words in text


def test_a_blocked_family_is_blocked_and_not_only_declared(wf: Any) -> None:
    plugins = json.loads(wf("list-plugins", "--json", WF_BLOCK="toy").stdout)["plugins"]
    [family] = next(plugin["families"] for plugin in plugins if plugin["name"] == "toy")
    assert family["state"] == "blocked"
