"""Proof that a model is as it was: what it is made of, where its tensors lie, and what they hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from attrs import field, frozen
from torch import nn

from wf_core.isolation.class_functions import Functions, class_diff, class_functions, module_functions
from wf_core.isolation.copy_checks import components_of, diffusers_hooks, own_forward
from wf_core.isolation.fingerprint_diff import (
    Record,
    Records,
    below,
    run_state_diff,
    structure_diff,
    tensor_diff,
)
from wf_core.isolation.module_attributes import CALL_STATE_KEYS, call_state_tensors
from wf_core.isolation.tensor_identity import content_digest, tensor_record

_HOOK_TABLES = tuple(key for key in vars(nn.Module()) if key.endswith("hooks") or "_hooks_" in key)
_SCALARS = frozenset({bool, int, float, str})
#: Attributes that say something only with a value, that have a field of their own, or that a call leaves behind.
_UNLISTED = frozenset(
    {
        "_diffusers_hook",
        "_compiled_call_impl",
        "forward",
        "_cache_config",
        "fused_projections",
        *CALL_STATE_KEYS,
    }
)


@frozen
class Fingerprint:
    """Three levels, and beside them what an ordinary run of the target changes too.

    ``structure``: modules, classes, hooks, processors, plain attribute values, by path. ``tensors``: identity,
    place, dtype and version of every parameter and buffer. ``contents``: a digest of each, if asked for.
    ``classes``: the functions of every class that the target is made of, of the modules that those come from, and of
    torch's own, since patching one changes the target.
    ``run_state``: the scheduler's progress, per-call attributes of the pipeline, the VAE's cache when not idle.
    Identities are object ids, so a fingerprint is good for one process and while its target is alive.
    """

    structure: Records = field(repr=False)
    tensors: Records = field(repr=False)
    contents: Mapping[str, str] | None = field(repr=False, default=None)
    classes: Mapping[str, Functions] = field(repr=False, factory=dict)
    run_state: Mapping[str, str] = field(repr=False, factory=dict)

    def diff(self, other: Fingerprint, run_state: bool = True, moved: Collection[str] = ()) -> list[str]:
        """One line per difference of ``other``, taken later: component and path, then what changed.

        Below a module that was replaced, added or removed nothing more is listed. Contents are compared if both
        fingerprints have them. ``run_state=False`` leaves out what the owner's own runs change as well; ``moved`` are
        the components that these put on another device and back, which makes other tensors of the same form.
        """
        lines, covered = structure_diff(self.structure, other.structure)
        lines += tensor_diff(self.tensors, other.tensors, covered, moved)
        lines += class_diff(self.classes, other.classes)
        if self.contents is not None and other.contents is not None:
            common = self.contents.keys() & other.contents.keys()
            changed = sorted(key for key in common if self.contents[key] != other.contents[key])
            lines += [f"{key}: contents changed" for key in changed if not below(key, covered)]
        if run_state:
            lines += run_state_diff(self.run_state, other.run_state)
        return lines


def fingerprint(target: Any, contents: bool = False, name: str = "model") -> Fingerprint:
    """Fingerprint a module, or a pipeline with all its components. Changes nothing and runs no kernel.

    ``contents=True`` also reads every parameter and buffer once. ``name`` begins the paths if ``target`` is a module;
    in a pipeline they begin with the component.
    """
    is_module = isinstance(target, nn.Module)
    modules = {name: target} if is_module else _modules_of(target)
    structure: dict[str, Record] = {}
    found: dict[str, Any] = {}
    run_state: dict[str, str] = {}
    classes = _classes_of(target, modules)
    for key, module in modules.items():
        _walk(module, key, structure, found, run_state, set())
    if not is_module:
        structure.update(_pipeline_records(target))
        run_state.update(_pipeline_run_state(target))
    return Fingerprint(
        MappingProxyType(structure),
        MappingProxyType({path: tensor_record(tensor) for path, tensor in found.items()}),
        MappingProxyType({path: content_digest(tensor) for path, tensor in found.items()})
        if contents
        else None,
        MappingProxyType({**class_functions(classes), **module_functions(classes)}),
        MappingProxyType(run_state),
    )


def _classes_of(target: Any, modules: Mapping[str, nn.Module]) -> set[type]:
    """The classes of the target, of its modules and processors, and of what else a pipeline is made of."""
    found = {type(target)}
    if not isinstance(target, nn.Module):
        found.update(type(part) for part in components_of(target).values() if part is not None)
    for root in modules.values():
        for module in root.modules():
            found.add(type(module))
            if "processor" in module.__dict__:
                found.add(type(module.__dict__["processor"]))
    return found


def _modules_of(pipe: Any) -> dict[str, nn.Module]:
    return {key: part for key, part in components_of(pipe).items() if isinstance(part, nn.Module)}


def _walk(
    module: nn.Module,
    path: str,
    structure: dict[str, Record],
    tensors: dict[str, Any],
    run_state: dict[str, str],
    seen: set[int],
) -> None:
    """Record ``module`` and everything below it. A module met again is recorded again, but entered only once."""
    structure[path] = _module_record(module)
    if id(module) in seen:
        return
    seen.add(id(module))
    attributes = module.__dict__
    for table in (attributes["_parameters"], attributes["_buffers"]):
        for key, tensor in table.items():
            if tensor is not None:
                tensors[f"{path}.{key}"] = tensor
    if not CALL_STATE_KEYS.keys().isdisjoint(attributes) and (held := call_state_tensors(module)):
        run_state[f"{path}: call cache"] = f"{held} tensors"
    for key, child in attributes["_modules"].items():
        if child is not None:
            _walk(child, f"{path}.{key}", structure, tensors, run_state, seen)


def _module_record(module: nn.Module) -> Record:
    """The values of ``MODULE_FIELDS``."""
    attributes = module.__dict__
    forward = own_forward(module) if "forward" in attributes else None
    processor = attributes.get("processor")
    return (
        id(module),
        type(module),
        None if forward is None else _function(forward),
        attributes.get("_compiled_call_impl") is not None,
        _torch_hooks(attributes),
        None if processor is None else _processor(processor),
        _attribute_names(tuple(attributes), _present(attributes)),
        tuple(
            [pair for pair in attributes.items() if type(pair[1]) in _SCALARS and pair[0] not in _UNLISTED]
        ),
        diffusers_hooks(module) if "_diffusers_hook" in attributes else (),
        id(attributes["_internal_dict"]) if "_internal_dict" in attributes else None,
        tuple(sorted(vars(type(module)))) if "parametrizations" in attributes["_modules"] else None,
        frozenset(attributes["_non_persistent_buffers_set"]),
    )


def _torch_hooks(attributes: dict[str, Any]) -> Record:
    return tuple(
        [
            (key, tuple((handle, _function(hook)) for handle, hook in attributes[key].items()))
            for key in _HOOK_TABLES
            if attributes.get(key)
        ]
    )


def _present(attributes: dict[str, Any]) -> Record:
    """Attributes which count only with a value: an unset one is left behind by ordinary use of the model."""
    cache = attributes.get("_cache_config")
    return (cache is not None, bool(attributes.get("fused_projections")))


@lru_cache(maxsize=4096)
def _attribute_names(names: tuple[str, ...], present: tuple[bool, bool]) -> frozenset[str]:
    marked = {
        key for key, there in zip(("_cache_config", "fused_projections"), present, strict=True) if there
    }
    return (frozenset(names) - _UNLISTED) | marked


def _function(function: Any) -> Record:
    """What tells two callables apart. Bound methods are made anew at each access, so their parts are compared."""
    label = getattr(function, "__qualname__", None) or type(function).__name__
    inner = getattr(function, "__func__", None)
    return (label, id(function)) if inner is None else (label, id(inner), id(function.__self__))


def _processor(processor: Any) -> Record:
    values = getattr(processor, "__dict__", {})
    shown = tuple((key, v if type(v) in _SCALARS or v is None else id(v)) for key, v in values.items())
    return type(processor).__qualname__, id(processor), shown


def _pipeline_records(pipe: Any) -> Iterator[tuple[str, Record]]:
    """Identity and configuration of everything that hangs on the pipeline, but for its per-call attributes."""
    yield "pipeline", (id(pipe), type(pipe).__qualname__, _config(pipe))
    for key, value in vars(pipe).items():
        if not key.startswith("_") and not isinstance(value, nn.Module):
            plain = value is None or type(value) in _SCALARS
            yield f"pipeline.{key}", (value if plain else id(value), type(value).__qualname__, _config(value))
        elif isinstance(value, nn.Module):
            yield f"pipeline.{key}", (id(value), type(value).__qualname__, None)


def _config(value: Any) -> str | None:
    config = getattr(value, "__dict__", {}).get("_internal_dict")
    return None if config is None else repr(sorted(dict(config).items()))


def _pipeline_run_state(pipe: Any) -> Iterator[tuple[str, str]]:
    for key, value in vars(pipe).items():
        if key.startswith("_") and key != "_internal_dict":
            yield f"pipeline.{key}", _state(value)
    for name in ("scheduler", "guider"):
        for key, value in getattr(vars(pipe).get(name), "__dict__", {}).items():
            if key != "_internal_dict":
                yield f"{name}.{key}", _state(value)


def _state(value: Any) -> str:
    """Plain values as they are, containers by their parts, everything else by identity."""
    if value is None or type(value) in _SCALARS:
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_state(part) for part in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_state(part)}' for key, part in value.items())}}}"
    return f"{type(value).__name__} at {id(value):#x}"
