"""A live pipeline, or a bare transformer, as component configs. Duck typing only: nothing is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from wf_core.errors import BadInput
from wf_core.facts.configs import ComponentConfig, ComponentConfigs, WeightSummary, is_denoiser


def read_pipeline(pipe: Any) -> ComponentConfigs:
    """The components of a pipeline object; an object without components is taken for a bare transformer.

    Raises `BadInput` for what has neither components nor a config.
    """
    components = getattr(pipe, "components", None)
    class_name = type(pipe).__name__
    if isinstance(pipe, type) or not (isinstance(components, Mapping) or hasattr(pipe, "config")):
        what = f"the class {pipe.__name__}" if isinstance(pipe, type) else f"an object of type {class_name}"
        raise BadInput(
            f"{what} is no base: give a loaded pipeline or transformer of diffusers, or where only facts are asked "
            "for a checkpoint directory or a registered name"
        )
    if not isinstance(components, Mapping):
        transformer = _component("transformer", pipe)
        return ComponentConfigs(
            "", {}, {"transformer": transformer}, _name(pipe), class_name, _hooks({"transformer": pipe}, None)
        )
    config = getattr(pipe, "config", None)
    return ComponentConfigs(
        class_name,
        config if isinstance(config, Mapping) else {},
        {name: _component(name, item) for name, item in components.items() if _is_model(item)},
        _name(pipe),
        class_name,
        _hooks(components, pipe),
    )


def _is_model(item: Any) -> bool:
    return item is not None and hasattr(item, "config")


def _component(name: str, item: Any) -> ComponentConfig:
    wanted = is_denoiser(name) or name == "vae"
    weights = _summary(item) if wanted and hasattr(item, "named_parameters") else None
    return ComponentConfig(type(item).__name__, item.config, weights, f"{name}.config")


def _summary(module: Any) -> WeightSummary:
    parameters = dict(module.named_parameters())
    first = next(iter(parameters.values()), None)
    learns = getattr(module, "training", False) and any(p.requires_grad for p in parameters.values())
    return WeightSummary.of(
        {
            name: (str(parameter.dtype).removeprefix("torch."), parameter.numel() * parameter.element_size())
            for name, parameter in parameters.items()
        },
        device="" if first is None else str(first.device.type),
        training=bool(learns),
    )


def _name(item: Any) -> str:
    config = getattr(item, "config", None)
    found = config.get("_name_or_path") if isinstance(config, Mapping) else None
    found = found or getattr(item, "name_or_path", "") or getattr(item, "_name_or_path", "")
    return os.fspath(found) if isinstance(found, str | os.PathLike) else ""


def _hooks(components: Mapping[str, Any], pipe: Any) -> str:
    """The first sign that something already runs around a module's forward, "" when there is none."""
    if getattr(pipe, "hf_device_map", None):
        return "the pipeline has an hf_device_map"
    for name, component in components.items():
        if getattr(component, "hf_device_map", None):
            return f"{name} has an hf_device_map"
        for path, module in _modules(component):
            where = f"{name}.{path}" if path else name
            attributes = vars(module)
            if "_hf_hook" in attributes:
                return f"{where} carries an accelerate hook"
            registry = attributes.get("_diffusers_hook")
            if registry is not None and getattr(registry, "hooks", None):
                return f"{where} carries diffusers hooks ({', '.join(sorted(registry.hooks))})"
    return ""


def _modules(component: Any) -> Iterator[tuple[str, Any]]:
    named_modules = getattr(component, "named_modules", None)
    return iter(named_modules()) if callable(named_modules) else iter(())
