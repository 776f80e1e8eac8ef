"""Registered models: profiles in place of files, aliases, remote ones, and models of another family than was said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wf_core.errors import BadInput, Refused
from wf_core.facts.model import facts_from_directory
from wf_core.host import Host

from .conftest import Site
from .test_cli_list import wf

__all__ = ["wf"]

MODELS = """
schema = 1
name = "model-toys"
api = 1
kind = "model-source"

[[model]]
name = "toy-1b"
family = "toy"
aliases = ["makers/Toy-1B-Diffusers"]
[model.profile]
pipeline = "ToyPipeline"
dtype = "bfloat16"
parameters = 1_000
modules = ["blocks", "attn1"]
[model.profile.config.transformer]
class = "ToyTransformer"
num_attention_heads = 12
attention_head_dim = 128
num_layers = 30
in_channels = 16
patch_size = [1, 2, 2]
[model.profile.config.vae]
class = "ToyVae"
z_dim = 16
[model.profile.official]
num_inference_steps = 50
sizes = [[480, 832]]

[[model]]
name = "toy-two"
family = "toy"
[model.profile]
pipeline = "ToyPipeline"
dtype = "float32"
parameters = 1_000
[model.profile.config.pipeline]
boundary_ratio = 0.9
[model.profile.config.transformer]
class = "ToyTransformer"
num_layers = 3
[model.profile.config.transformer_2]
class = "ToyTransformer"
num_layers = 3

[[model]]
name = "toy-api"
family = "toy"
remote = true

[[model]]
name = "toy-elsewhere"
family = "toy"
"""


@pytest.fixture
def host(site: Site) -> Host:
    site.family()
    site.cache("cache-a")
    site.plugin("model-toys", MODELS)
    return Host.discover([str(site.folder)])


def test_a_profile_gives_what_the_files_would(host: Host, toy_checkpoint: Path) -> None:
    profile = host.facts("toy-1b")
    files = facts_from_directory(toy_checkpoint, host.catalog.manifests)
    names = [name for name in files if name.startswith(("model.", "vae."))]
    same = {name for name in names if name in profile and profile.get(name) == files.get(name)}
    assert {*names} - same == {
        "model.classes",  # the scheduler, about which a profile says nothing
        "model.components",
        "model.scheduler",
        "model.directory",
        "model.here",
        "model.modules_present",
        "model.parameters_bytes",
        "vae.dtype",
    }
    assert profile.get("model.here") is False
    assert profile.get("model.parameters_bytes") == 2_000
    assert profile.get("model.modules_present") == ("attn1", "blocks")
    assert profile.source("model.heads") == "profile toy-1b"


def test_a_profile_of_two_experts(host: Host) -> None:
    facts = host.facts("toy-two")
    assert facts.get("model.experts") == ("transformer", "transformer_2")
    assert (facts.get("model.has_second_expert"), facts.get("model.boundary_ratio")) == (True, 0.9)
    assert facts.get("model.parameters_bytes") == 4_000


@pytest.mark.parametrize("name", ["toy-1b", "TOY-1B", "makers/Toy-1B-Diffusers"])
def test_a_model_answers_to_its_name_and_its_aliases(host: Host, name: str) -> None:
    assert host.facts(name).get("model.id") == "toy-1b"
    assert host.facts(name) == host.facts("toy-1b")


def test_what_the_publisher_runs_is_known_of_its_files_too(host: Host, toy_checkpoint: Path) -> None:
    for base in ("toy-1b", str(toy_checkpoint)):
        facts = host.facts(base)
        assert facts.get("model.official_steps") == 50
        assert facts.get("model.official_sizes") == ((480, 832),)
        assert "model.official_guidance" not in facts
    assert "model.official_steps" not in host.facts("toy-two")


def test_nothing_of_a_remote_model_can_be_switched_here(host: Host, wf: Any) -> None:
    for request in ({}, {"a": True}, {"nothing": 1}):
        with pytest.raises(Refused) as refused:
            host.resolve("toy-api", request)
        [violation] = refused.value.refusal.violations
        assert (violation.code, violation.involves) == ("WF-M006", ("model",))
        assert "toy-api is served remotely" in violation.reason
        assert refused.value.refusal.nearest is None
    result = wf("resolve", "toy-api")
    assert result.exit_code == 2
    assert "no request is legal here" in result.stdout


def test_a_model_of_which_only_the_name_is_known(host: Host) -> None:
    facts = host.facts("toy-elsewhere")
    assert (facts.get("model.family"), facts.get("model.id")) == ("toy", "toy-elsewhere")
    assert facts.get("model.lossy_attention") is True
    assert "model.heads" not in facts
    assert host.resolve("toy-elsewhere", {"a": True}).features


def test_a_registered_model_is_of_its_own_family(host: Host, wf: Any) -> None:
    with pytest.raises(BadInput, match="toy-1b is a model of the family toy, not nofam"):
        host.resolve("toy-1b", {}, family="nofam")
    assert host.resolve("toy-1b", {}, family="toy").family == "toy"
    result = wf("resolve", "toy-1b", "--family", "nofam", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"] == "toy-1b is a model of the family toy, not nofam"
    assert result.stderr == "wf: toy-1b is a model of the family toy, not nofam\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("toy-1b", "of toy-1b only a profile is known, not its files"),
        ("toy-api", "toy-api is served remotely"),
    ],
)
def test_what_has_no_files_here_cannot_be_loaded(host: Host, name: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        host.model_directory(name)


# --- families -------------------------------------------------------------------------------------------------------


def test_a_fact_may_be_several_numbers_of_a_config(site: Site, toy_checkpoint: Path) -> None:
    site.family()
    path = site.folder / "toyplug_toy" / "wf-plugin.toml"
    text = path.read_text()
    keys = ("transformer.num_layers", "transformer.num_layers")
    for parts, wanted in ((keys, True), ((*keys, "transformer.absent"), False)):
        added = f'[family.facts]\n"model.shape" = {list(parts)}\n'
        path.write_text(text.replace("[family.facts]\n", added))
        facts = Host.discover([str(site.folder)]).facts(toy_checkpoint)
        layers = facts.get("model.layers")
        assert facts.get("model.shape") == ((layers, layers) if wanted else None)


@pytest.mark.parametrize("broken", [[2, 2], "2", 2.5, True])
def test_a_size_made_of_several_numbers_is_checked(site: Site, toy_checkpoint: Path, broken: object) -> None:
    site.family()
    path = site.folder / "toyplug_toy" / "wf-plugin.toml"
    patch = '"model.patch_size" = "transformer.patch_size"'
    assert patch in path.read_text()
    path.write_text(path.read_text().replace(patch, patch.replace('"transformer', '["transformer') + "]"))
    config = toy_checkpoint / "transformer" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "patch_size": broken}))
    with pytest.raises(BadInput, match="whole numbers"):
        Host.discover([str(site.folder)]).facts(toy_checkpoint)


def test_a_number_of_layers_is_a_whole_number(site: Site, toy_checkpoint: Path) -> None:
    site.family()
    config = toy_checkpoint / "transformer" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_layers": "30"}))
    with pytest.raises(BadInput, match="num_layers must be a whole number"):
        Host.discover([str(site.folder)]).facts(toy_checkpoint)


def test_a_fact_may_be_another_for_each_variant(site: Site, toy_checkpoint: Path) -> None:
    site.family()
    path = site.folder / "toyplug_toy" / "wf-plugin.toml"
    added = '[family.facts]\n"model.shape" = { by_variant = { toy = [1], toy-vace = [2] } }\n'
    path.write_text(path.read_text().replace("[family.facts]\n", added))
    host = Host.discover([str(site.folder)])
    assert host.facts(toy_checkpoint).get("model.shape") == (1,)
    config = toy_checkpoint / "transformer" / "config.json"
    config.write_text(config.read_text().replace("ToyTransformer", "ToyVaceTransformer"))
    index = toy_checkpoint / "model_index.json"
    index.write_text(index.read_text().replace("ToyTransformer", "ToyVaceTransformer"))
    assert host.facts(toy_checkpoint).get("model.shape") == (2,)
    text = path.read_text().replace("toy = [1], ", "")
    path.write_text(text)
    config.write_text(config.read_text().replace("ToyVaceTransformer", "ToyTransformer"))
    index.write_text(index.read_text().replace("ToyVaceTransformer", "ToyTransformer"))
    assert "model.shape" not in Host.discover([str(site.folder)]).facts(toy_checkpoint)
