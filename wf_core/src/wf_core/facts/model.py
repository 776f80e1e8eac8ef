"""Facts about a model, from a live pipeline or a checkpoint directory, through one intermediate form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wf_core.errors import BadInput
from wf_core.facts import Fact, Facts
from wf_core.facts.configs import ComponentConfig, ComponentConfigs, WeightSummary, is_denoiser
from wf_core.facts.directory import read_directory
from wf_core.facts.live import read_pipeline
from wf_core.manifests.declarations import FactSource, FamilyDecl, ModelDecl
from wf_core.manifests.manifest import Manifest
from wf_core.values import freeze, show

_DERIVED = "derived"
_DIVISORS = (
    "model.patch_size",
    "vae.scale_factor_spatial",
    "vae.scale_factor_temporal",
    "vae.spatial_factor",
    "vae.temporal_factor",
)
"""Facts that sizes of a clip are divided by."""
_COUNTS = ("model.layers", "model.single_layers")
_OFFICIAL = {"num_inference_steps": "steps", "guidance_scale": "guidance", "num_frames": "frames"}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def facts_from_pipeline(pipe: Any, manifests: Iterable[Manifest]) -> Facts:
    """Facts of a live pipeline, or of a bare transformer. Reads configs and parameter metadata only."""
    return _facts(read_pipeline(pipe), tuple(manifests))


def facts_from_directory(path: Path | str, manifests: Iterable[Manifest]) -> Facts:
    """Facts of a checkpoint directory. Raises `BadInput` naming a file that is missing or corrupt."""
    return _facts(read_directory(Path(path)), tuple(manifests))


def facts_from_profile(model: ModelDecl, manifests: Iterable[Manifest]) -> Facts:
    """Facts of a model of which only a profile is known: what its checkpoint's configs say, and what is published."""
    profile, manifests = model.profile, tuple(manifests)
    if profile is None:
        declared = next((m.family for m in manifests if m.family and m.family.name == model.family), None)
        return facts_from_name(model.name, model.family, declared, remote=model.remote)
    source = f"profile {model.name}"
    experts = [name for name in profile.configs if is_denoiser(name)]
    size = profile.parameters * _BYTES.get(profile.dtype, 2) // max(1, len(experts))
    components = {
        name: ComponentConfig(
            config["class"],
            config,
            WeightSummary(size, profile.dtype, profile.modules) if name in experts else None,
            source,
        )
        for name, config in profile.configs.items()
        if name != "pipeline"
    }
    pipeline = profile.configs.get("pipeline", {})
    configs = ComponentConfigs(profile.pipeline, pipeline, components, model.name, source)
    return _facts(configs, manifests, here=False).merged(official_facts(model))


def official_facts(model: ModelDecl | None) -> Facts:
    """What the publisher of a model runs: ``model.official_steps`` and so on, as far as its profile says."""
    known = model.profile.official if model is not None and model.profile is not None else {}
    return Facts.of(
        {f"model.official_{_OFFICIAL.get(key, key)}": value for key, value in known.items()}, "profile"
    )


def facts_from_name(name: str, family: str, declared: FamilyDecl | None, *, remote: bool = False) -> Facts:
    """What a model's name and family say, where its files are not at hand."""
    values = {
        "model.id": model_id(name, ()),
        "model.family": family,
        "model.training": False,
        "model.here": False,
    }
    constants = (
        {fact: source.default for fact, source in declared.facts.items() if source.constant}
        if declared
        else {}
    )
    facts = Facts.of(constants, f"manifest of {family}").merged(Facts.of(values, "the model's name"))
    return facts.with_({"model.remote": True}, source="manifest") if remote else facts


def model_id(name: str, manifests: Iterable[Manifest]) -> str:
    """The id by which presets know a model: a registered model's own name, else the last part of the path.

    ``/hub/models--Wan-AI--Wan2.1-T2V-1.3B-Diffusers/snapshots/0fad`` gives ``wan2.1-t2v-1.3b``.
    """
    if not name:
        return ""
    for manifest in manifests:
        for model in manifest.models:
            if model.path and _same_folder(manifest.path.parent / model.path, name):
                return model.name
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    cached = [part.rpartition("--")[2] for part in parts if part.startswith("models--")]
    last = cached[-1] if cached else parts[-1] if parts else ""
    return last.lower().removesuffix("-diffusers")


def _directory(name: str) -> str:
    """Where the checkpoint's files are, "" where the model was not loaded from a folder that is there."""
    return os.path.abspath(name) if name and os.path.isdir(name) else ""


def _same_folder(folder: Path, name: str) -> bool:
    return folder.is_dir() and os.path.isdir(name) and folder.samefile(name)


def _facts(configs: ComponentConfigs, manifests: tuple[Manifest, ...], *, here: bool = True) -> Facts:
    """``here``: the model's files, or the model itself, are on this machine."""
    family, experts = _family(configs, manifests)
    classes = {name: item.class_name for name, item in configs.components.items()}
    denoisers = {class_name for name, class_name in classes.items() if is_denoiser(name)}
    facts: dict[str, Fact] = {
        "model.here": Fact(here, configs.source),
        "pipeline.class": Fact(configs.pipeline_class, configs.source),
        "model.id": Fact(model_id(configs.source_name, manifests), configs.source),
        "model.classes": Fact(sorted(set(classes.values())), configs.source),
        "model.denoisers": Fact(sorted(denoisers), configs.source),
        "model.scheduler": Fact(classes.get("scheduler", ""), configs.source),
        "model.components": Fact(sorted(configs.components), configs.source),
        "model.experts": Fact(experts, configs.source),
        "model.has_second_expert": Fact(any(name.endswith("_2") for name in experts), configs.source),
        "model.boundary_ratio": Fact(configs.pipeline_config.get("boundary_ratio"), configs.source),
        "model.hooked": Fact(configs.hooked, configs.source),
        "model.training": Fact(any(w.training for w in _expert_weights(configs, experts)), configs.source),
    }
    if directory := _directory(configs.source_name):
        facts["model.directory"] = Fact(directory, configs.source)
    if family is not None:
        first = configs.components[experts[0]]
        facts["model.family"] = Fact(family.name, first.source)
        facts["model.variant"] = Fact(family.transformer_classes[first.class_name], first.source)
        facts.update(_declared(configs, family, experts))
    facts.update(_weights(configs, experts))
    return _with_derived(Facts(facts))


def _family(
    configs: ComponentConfigs, manifests: tuple[Manifest, ...]
) -> tuple[FamilyDecl | None, tuple[str, ...]]:
    for manifest in manifests:
        family = manifest.family
        if family is None:
            continue
        classes = family.transformer_classes
        experts = [name for name, item in configs.components.items() if item.class_name in classes]
        if experts:
            return family, tuple(sorted(experts))
    return None, ()


def _declared(configs: ComponentConfigs, family: FamilyDecl, experts: tuple[str, ...]) -> dict[str, Fact]:
    """The facts that the family's manifest reads from configs. ``transformer`` means the first expert there is."""
    pipeline = ComponentConfig(configs.pipeline_class, configs.pipeline_config, None, configs.source)
    components = {**configs.components, "pipeline": pipeline}
    components.setdefault("transformer", configs.components[experts[0]])
    found = {}
    variant = family.transformer_classes[configs.components[experts[0]].class_name]
    for name, source in family.facts.items():
        fact = _from_source(name, source, components, family.name, variant)
        if fact is not None:
            found[name] = fact
    return found


def _divides(value: Any) -> bool:
    numbers = value if isinstance(value, list | tuple) else (value,)
    return bool(numbers) and all(type(n) is int and n > 0 for n in freeze(list(numbers)))


def _from_source(
    name: str, source: FactSource, components: Mapping[str, ComponentConfig], family: str, variant: str
) -> Fact | None:
    if source.by_variant:
        return (
            Fact(source.by_variant[variant], f"manifest of {family}")
            if variant in source.by_variant
            else None
        )
    if source.constant:
        return Fact(source.default, f"manifest of {family}")
    if source.parts:
        parts = [_from_source(name, part, components, family, variant) for part in source.parts]
        values = [part.value for part in parts if part is not None]
        if len(values) != len(parts):
            return None
        config = components[source.parts[0].component].source
        if name in _DIVISORS and not all(type(value) is int for value in values):
            raise BadInput(f"{config}: {name} must be made of whole numbers, got {show(values)[:60]}")
        return Fact(values, config)
    component = components.get(source.component)
    if component is None:
        return None
    value = component.get(source.key) if component.has(source.key) else None
    if value is not None:
        if name in _DIVISORS and not _divides(value):
            raise BadInput(
                f"{component.source}: {source.key} must be whole numbers above 0, got {show(value)[:60]}"
            )
        if name in _COUNTS and not (type(value) is int and value >= 0):
            raise BadInput(f"{component.source}: {source.key} must be a whole number, got {show(value)[:60]}")
        return Fact(value, component.source)
    return Fact(source.default, f"manifest of {family}") if source.default is not None else None


def _weights(configs: ComponentConfigs, experts: tuple[str, ...]) -> dict[str, Fact]:
    facts = {}
    weights = _expert_weights(configs, experts)
    if weights and weights[0].device:
        facts["device.type"] = Fact(weights[0].device, "parameters")
    if weights and len(weights) == len(experts):
        facts["model.dtype"] = Fact(weights[0].dtype, "weights")
        facts["model.parameters_bytes"] = Fact(sum(summary.bytes for summary in weights), "weights")
        present = sorted({name for summary in weights for name in summary.modules})
        facts["model.modules_present"] = Fact(present, "weights")
    vae = configs.components.get("vae")
    if vae is not None:
        facts["vae.class"] = Fact(vae.class_name, vae.source)
        if vae.weights is not None:
            facts["vae.dtype"] = Fact(vae.weights.dtype, "weights")
    return facts


def _expert_weights(configs: ComponentConfigs, experts: tuple[str, ...]) -> list[WeightSummary]:
    found = [configs.components[name].weights for name in experts]
    return [summary for summary in found if summary is not None]


def _with_derived(facts: Facts) -> Facts:
    """What follows from other facts, where the family says enough: the pixel steps that a clip must fit, and
    ``model.blocks``, all the blocks that a ``block`` handler sees, of one kind or of two.
    """
    aliases = {
        "vae.spatial_factor": "vae.scale_factor_spatial",
        "vae.temporal_factor": "vae.scale_factor_temporal",
    }
    for name, other in aliases.items():
        if name not in facts and other in facts:
            facts = facts.with_({name: facts[other]})
    layers, single = facts.get("model.layers"), facts.get("model.single_layers", 0)
    if layers is not None:
        facts = facts.with_({"model.blocks": layers + single}, source=_DERIVED)
    patch, spatial = facts.get("model.patch_size"), facts.get("vae.spatial_factor")
    if not (isinstance(patch, tuple) and len(patch) == 3 and isinstance(spatial, int)):
        return facts
    multiple = (spatial * patch[1], spatial * patch[2])
    return facts.with_({"model.pixel_multiple": multiple}, source=_DERIVED)
