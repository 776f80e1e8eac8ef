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

import wf_plugin_cosmos
from wf_core.api import SEAMS, Facts
from wf_core.testing import Manifest, facts_from_directory

MANIFEST = Manifest.load(Path(wf_plugin_cosmos.__file__).with_name("wf-plugin.toml"))
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
    arguments.setdefault("extra_pos_embed_type", None)  # TOML has no null: what is None is left out
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
        ("cosmos-predict1-7b-text2world", (121, 704, 1280), (16, 44, 80), 56320),
        ("cosmos-predict1-14b-video2world", (121, 704, 1280), (16, 44, 80), 56320),
        ("cosmos-predict2-2b-text2image", (1, 768, 1360), (1, 48, 85), 4080),
        ("cosmos-predict2-14b-text2image", (1, 768, 1360), (1, 48, 85), 4080),
        ("cosmos-predict2-2b-video2world", (93, 704, 1280), (24, 44, 80), 84480),
        ("cosmos-predict2-14b-video2world", (93, 704, 1280), (24, 44, 80), 84480),
        ("cosmos-predict2.5-2b", (93, 704, 1280), (24, 44, 80), 84480),
        ("cosmos-predict2.5-14b", (93, 704, 1280), (24, 44, 80), 84480),
        ("cosmos-transfer2.5-2b", (93, 704, 1280), (24, 44, 80), 84480),
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


def test_the_manifest_names_the_seams_that_there_are_and_the_hook_gives_the_adapter() -> None:
    assert FAMILY.state == ""
    assert set(SEAMS) == set(FAMILY.seams)
    assert type(wf_plugin_cosmos.wf_model_family()).__name__ == "CosmosFamily"
    assert {FAMILY.instead[key] for key in ("vae_spatial_tiling", "vae_tiled_decode", "tiled")} == {
        "vae_tiling"
    }


@pytest.mark.parametrize(
    ("name", "vae", "temporal"),
    [
        ("cosmos-predict1-7b-text2world", "AutoencoderKLCosmos", 8),
        ("cosmos-predict2-2b-video2world", "AutoencoderKLWan", 4),
    ],
)
def test_the_factor_comes_from_the_vae_that_the_checkpoint_has(
    name: str, vae: str, temporal: int, tmp_path: Path
) -> None:
    facts = checkpoint_facts(name, tmp_path)
    found = (facts.get("vae.class"), facts.get("vae.temporal_factor"), facts.get("vae.spatial_factor"))
    assert found == (vae, temporal, 8)
    assert facts.get("vae.z_dim") == 16


def test_facts_that_tell_the_checkpoints_apart(tmp_path: Path) -> None:
    plain = checkpoint_facts("cosmos-predict2.5-2b", tmp_path)
    control = checkpoint_facts("cosmos-transfer2.5-2b", tmp_path)
    assert (plain.get("model.image_dim"), plain.get("model.control_every")) == (0, 0)
    assert (control.get("model.image_dim"), control.get("model.control_every")) == (1152, 7)
    assert (plain.get("model.text_projection"), plain.get("model.guidance_form")) == (True, "two-branch")


@pytest.mark.parametrize(
    ("vae", "frames", "state"),
    [
        ("AutoencoderKLCosmos", 121, "met"),
        ("AutoencoderKLCosmos", 129, "unmet"),
        ("AutoencoderKLCosmos", None, "unknown"),
        ("AutoencoderKLWan", 189, "met"),
    ],
)
def test_the_statistics_of_predict1_end_at_16_latent_frames(vae: str, frames: int | None, state: str) -> None:
    call = {} if frames is None else {"run.num_frames": frames}
    (condition,) = FAMILY.conditions
    verdict = condition.judge(Facts.of({"vae.class": vae, **call}, source="test"), {})
    assert (verdict.state, condition.code) == (state, "WF-Y010")
    assert "129 frames" in verdict.reason or state != "unmet"
