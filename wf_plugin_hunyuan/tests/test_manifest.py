"""The manifest: facts, conditions, and the profiles against the classes of diffusers that they describe."""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

import wf_plugin_hunyuan
from wf_core.api import SEAMS
from wf_core.testing import Manifest, facts_from_directory

MANIFEST = Manifest.load(Path(wf_plugin_hunyuan.__file__).with_name("wf-plugin.toml"))
FAMILY = MANIFEST.family
assert FAMILY is not None
PROFILES = {model.name: model for model in MANIFEST.models if model.profile is not None}
every_profile = pytest.mark.parametrize("name", PROFILES)


def library_class(name: str) -> Any:
    """A class of diffusers. One that it lacks fails the test; one whose own imports fail here skips it."""
    try:
        return getattr(diffusers, name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"diffusers cannot import {name} here: {error}")


def built(config: Any) -> torch.nn.Module:
    """The transformer of a profile's config, without storage."""
    arguments = {key: value for key, value in config.items() if key != "class"}
    with torch.device("meta"):
        return library_class(config["class"])(**arguments)


@functools.cache
def transformers(name: str) -> tuple[torch.nn.Module, ...]:
    configs = PROFILES[name].profile.configs
    return tuple(built(config) for part, config in configs.items() if part.startswith("transformer"))


def checkpoint_facts(name: str, folder: Path) -> Any:
    """The facts of a checkpoint directory with the profile's configs, under the name that its publisher gives it."""
    model = PROFILES[name]
    folder = folder / (model.aliases[0] if model.aliases else name).rpartition("/")[2]
    configs = dict(model.profile.configs)
    index = {"_class_name": model.profile.pipeline, **configs.pop("pipeline", {})}
    for part, config in configs.items():
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(dict(config)))
        (folder / part / "diffusion_pytorch_model.bin").touch()
        index[part] = ["diffusers", config["class"]]
    (folder / "model_index.json").write_text(json.dumps(index))
    return facts_from_directory(folder, [MANIFEST])


@every_profile
def test_weights_are_those_of_the_class(name: str) -> None:
    profile = PROFILES[name].profile
    assert profile.parameters == sum(
        parameter.numel() for model in transformers(name) for parameter in model.parameters()
    )
    keys = {key for model in transformers(name) for key in model.state_dict()}
    parts = {part for key in keys for part in key.split(".")[:-1] if not part.isdigit()}
    assert list(profile.modules) == sorted(parts)


@every_profile
def test_facts_that_follow_from_the_class(name: str, tmp_path: Path) -> None:
    facts = checkpoint_facts(name, tmp_path)
    assert set(FAMILY.facts) - set(facts) == set()
    for model in transformers(name):
        lists = [key for key, child in model.named_children() if isinstance(child, torch.nn.ModuleList)]
        assert sorted(facts.get("model.layer_containers")) == sorted(lists)
        assert list(facts.get("model.kept_in_fp32")) == list(type(model)._keep_in_fp32_modules or [])


@every_profile
def test_names_that_it_is_known_by(name: str, tmp_path: Path) -> None:
    facts = checkpoint_facts(name, tmp_path)
    assert facts.get("model.id") in (name, *PROFILES[name].aliases)
    others = [
        other for model in MANIFEST.models if model.name != name for other in (model.name, *model.aliases)
    ]
    assert not {other.lower() for other in others} & {name, *map(str.lower, PROFILES[name].aliases)}


@every_profile
def test_the_pipeline_and_its_components_exist(name: str, tmp_path: Path) -> None:
    profile = PROFILES[name].profile
    pipeline = inspect.signature(library_class(profile.pipeline)).parameters
    assert set(profile.configs) - {"pipeline"} <= set(pipeline)
    assert set(profile.configs.get("pipeline", {})) <= set(pipeline)
    for part, config in profile.configs.items():
        if part != "pipeline":
            assert set(config) - {"class"} <= set(
                inspect.signature(library_class(config["class"])).parameters
            )


@every_profile
def test_what_a_call_is_assumed_to_be_is_official(name: str) -> None:
    official, defaults = PROFILES[name].profile.official, PROFILES[name].defaults
    assert (defaults["height"], defaults["width"]) in official["sizes"]
    for key in ("num_inference_steps", "guidance_scale", "num_frames"):
        assert defaults[key] == official[key]


@pytest.mark.parametrize(
    "name", sorted({model.profile.configs["vae"]["class"] for model in PROFILES.values()})
)
def test_decoders_have_conv3d(name: str) -> None:
    assert FAMILY.facts["vae.has_conv3d"].default is True
    with torch.device("meta"):
        decoder = library_class(name)().decoder
    assert any(isinstance(module, torch.nn.Conv3d) for module in decoder.modules())


@pytest.mark.parametrize(
    ("name", "clip", "grid", "tokens"),
    [
        ("hunyuanvideo", (129, 720, 1280), (33, 45, 80), 118800),
        ("hunyuanvideo", (129, 544, 960), (33, 34, 60), 67320),
        ("hunyuanvideo-i2v", (129, 720, 1280), (33, 45, 80), 118800),
        ("hunyuanvideo-1.5", (121, 480, 848), (31, 30, 53), 49290),
        ("hunyuanvideo-1.5", (121, 720, 1280), (31, 45, 80), 111600),
        ("hunyuanvideo-1.5-i2v-480p", (121, 480, 848), (31, 30, 53), 49290),
    ],
)
def test_token_grids(
    name: str, clip: tuple[int, int, int], grid: tuple[int, int, int], tokens: int, tmp_path: Path
) -> None:
    """``clip`` is (frames, height, width); an official size of that model."""
    official = PROFILES[name].profile.official
    assert (official["num_frames"], clip[1:] in official["sizes"]) == (clip[0], True)
    facts = checkpoint_facts(name, tmp_path)
    steps = (facts.get("vae.temporal_factor"), *facts.get("model.pixel_multiple"))
    assert ((clip[0] - 1) % steps[0], clip[1] % steps[1], clip[2] % steps[2]) == (0, 0, 0)
    latent_frames = (clip[0] - 1) // steps[0] + 1
    found = (latent_frames // facts.get("model.patch_size")[0], clip[1] // steps[1], clip[2] // steps[2])
    assert (found, found[0] * found[1] * found[2]) == (grid, tokens)


def test_what_the_adapter_has_not_is_not_among_its_seams() -> None:
    assert FAMILY.state == ""
    assert set(SEAMS) - set(FAMILY.seams) == {"time_embedding"}
    assert {FAMILY.instead[key] for key in ("vae_spatial_tiling", "vae_tiled_decode", "tiled")} == {
        "vae_tiling"
    }


def test_guidance_is_embedded_or_driven_by_a_guider(tmp_path: Path) -> None:
    assert checkpoint_facts("hunyuanvideo", tmp_path).get("model.guidance_form") == "embedded"
    assert checkpoint_facts("hunyuanvideo-1.5", tmp_path).get("model.guidance_form") == "guider"


def test_facts_that_tell_the_checkpoints_apart(tmp_path: Path) -> None:
    names = ("hunyuanvideo", "hunyuanvideo-i2v", "hunyuanvideo-i2v-33ch", "hunyuanvideo-1.5-i2v")
    found = [checkpoint_facts(name, tmp_path) for name in names]
    assert [(facts.get("model.image_condition"), facts.get("model.channels_in")) for facts in found] == [
        ("none", 16),
        ("token_replace", 16),
        ("latent_concat", 33),
        ("none", 65),
    ]
    assert [facts.get("model.image_dim") for facts in found] == [0, 0, 0, 1152]
    assert [facts.get("vae.z_dim") for facts in found] == [16, 16, 16, 32]
