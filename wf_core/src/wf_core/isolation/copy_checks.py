"""What a model must not carry if a structural copy of it is to be independent. Reads only, builds nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn

from wf_core.errors import BadInput, CannotCopy
from wf_core.isolation.module_attributes import hidden_references


def own_forward(module: nn.Module) -> Any | None:
    """The instance's ``forward`` if it is anything but the bound method of its class, else None.

    Hook frameworks leave the bound method behind as an instance attribute when they go: that is no override.
    """
    forward = module.__dict__.get("forward")
    if forward is None:
        return None
    is_class_method = (
        isinstance(forward, MethodType)
        and forward.__self__ is module
        and forward.__func__ is getattr(type(module), "forward", None)
    )
    return None if is_class_method else forward


def diffusers_hooks(module: nn.Module) -> tuple[str, ...]:
    """Names of the diffusers hooks on the module; an empty registry, which every cache run leaves, gives none."""
    registry = module.__dict__.get("_diffusers_hook")
    return () if registry is None else tuple(getattr(registry, "hooks", None) or ())


def module_obstacles(module: nn.Module, name: str = "model") -> list[str]:
    """Why the module cannot be copied structurally, one sentence each; empty if it can."""
    return [line for path, part in module.named_modules(prefix=name) for line in _obstacles(part, path)]


def _obstacles(module: nn.Module, path: str) -> Iterator[str]:
    yield from _hook_obstacles(module, path)
    if isinstance(module, torch.jit.ScriptModule):
        yield f"{path} is a TorchScript module: load the eager one"
    elif forward := own_forward(module):
        label = getattr(forward, "__qualname__", None) or type(forward).__name__
        yield (
            f"{path} has a forward of its own ({label}), which would run the original's modules: undo that "
            "(and prefer model.compile() to torch.compile(model))"
        )
    for where, value in hidden_references(module, path):
        if not isinstance(value, torch.Tensor):
            what = f"bound to {type(value.__self__).__name__}" if isinstance(value, MethodType) else "that is"
            kind = "a method" if isinstance(value, MethodType) else f"a {type(value).__name__}"
            yield f"{where} holds {kind} {what} not registered as a submodule: a copy would run the original's"


def _hook_obstacles(module: nn.Module, path: str) -> Iterator[str]:
    if hooks := diffusers_hooks(module):
        yield (
            f"{path} carries the diffusers hooks {', '.join(hooks)}: disable the cache, casting or offload "
            "which put them there"
        )
    if (hook := module.__dict__.get("_hf_hook")) is not None:
        yield (
            f"{path} carries the accelerate hook {type(hook).__name__}: call pipe.remove_all_hooks(), or load "
            "without device_map and use pipe.to(device)"
        )


def components_of(pipe: Any) -> dict[str, Any]:
    """The pipeline's registered components by name, None included, in the order of registration."""
    state = vars(pipe)
    return {name: state[name] for name in pipe.config if not name.startswith("_") and name in state}


def _spread_over_devices(holder: Any) -> bool:
    device_map = getattr(holder, "hf_device_map", None)
    return isinstance(device_map, Mapping) and len({str(device) for device in device_map.values()}) > 1


def _placement_obstacles(pipe: Any, own: Iterable[str]) -> Iterator[str]:
    if hooks := getattr(pipe, "_all_hooks", None):
        yield f"the pipeline is offloaded by accelerate ({len(hooks)} hooks): call pipe.remove_all_hooks()"
    if _spread_over_devices(pipe):
        yield "the pipeline has a device map (hf_device_map): call pipe.reset_device_map()"
    for name, component in components_of(pipe).items():
        if not isinstance(component, nn.Module):
            continue
        if _spread_over_devices(component):
            yield f"{name} has a device map (hf_device_map): load it on one device"
        if name not in own:  # shared: only what moves or replaces its weights between two calls matters
            for path, part in component.named_modules(prefix=name):
                if "_hf_hook" in part.__dict__:
                    yield from _hook_obstacles(part, path)


def default_own(pipe: Any) -> tuple[str, ...]:
    """The components that a session needs for itself: denoisers and the VAE. Text encoders keep no state."""
    parts = components_of(pipe).items()
    return tuple(
        name
        for name, part in parts
        if isinstance(part, nn.Module) and (name == "vae" or name.split("_")[0] in ("transformer", "unet"))
    )


def assert_copyable(target: Any, own: Iterable[str] | None = None, name: str = "model") -> None:
    """Check a module or pipeline without building anything. ``own`` names the components to be copied.

    Raises:
        CannotCopy: what was found, where, and the next step.
        BadInput: ``own`` names something that is no component, or no module.
    """
    if isinstance(target, nn.Module):
        obstacles = module_obstacles(target, name)
    else:
        wanted = default_own(target) if own is None else tuple(own)
        modules = own_modules(target, wanted)
        obstacles = list(_placement_obstacles(target, wanted))
        obstacles += [line for key, part in modules.items() for line in module_obstacles(part, key)]
    if obstacles:
        more = f" (and {len(obstacles) - 3} more)" if len(obstacles) > 3 else ""
        raise CannotCopy(f"cannot copy {type(target).__name__}: " + "; ".join(obstacles[:3]) + more)


def own_modules(pipe: Any, own: Iterable[str]) -> dict[str, nn.Module]:
    """The named components that are modules; absent optional ones (None) are left out.

    Raises:
        BadInput: a name that is no component, or a component that is no module.
    """
    components = components_of(pipe)
    modules = {}
    for name in own:
        component = components.get(name)
        if name not in components or not isinstance(component, (nn.Module, type(None))):
            known = ", ".join(key for key, part in components.items() if isinstance(part, nn.Module))
            raise BadInput(
                f"{type(pipe).__name__} has no module component {name!r}; it has {known or 'none'}"
            )
        if component is not None:
            modules[name] = component
    return modules
