"""The structural copy: new module objects around the same weights.

A copy is an instance of the same class which never ran ``__init__``. It has its own parameter, buffer, submodule
and hook tables, so hooks, processors, submodules and ``forward`` can be replaced on it without the original
noticing. The tensors are the original's own objects: ``.to``, ``load_state_dict``, ``requires_grad_`` and in-place
operations on a copy write through.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import nn

from wf_core.isolation.copy_checks import assert_copyable, components_of, own_modules
from wf_core.isolation.module_attributes import CALL_STATE_KEYS, OWN_CONTAINERS, PLAIN_TYPES, hidden_tensors

__all__ = ["CALL_STATE_KEYS", "assert_copyable", "copy_module", "copy_pipeline", "hidden_tensors"]

M = TypeVar("M", bound=nn.Module)
P = TypeVar("P")

#: Never carried over: they are empty or bound to the original (``copy_checks`` has refused the others).
_DROPPED = frozenset({"_diffusers_hook", "_compiled_call_impl", "forward"})
_STATEFUL_COMPONENTS = frozenset({"scheduler", "guider"})


def copy_module(module: M, name: str = "model") -> M:
    """A structural copy that shares every parameter and buffer with ``module``, which is not modified.

    Submodules used twice are used twice in the copy as well. ``name`` begins the paths in messages.

    Raises:
        CannotCopy: hooks, an overridden ``forward`` or hidden modules would make the copy run the original's.
    """
    assert_copyable(module, name=name)
    copied: M = _Copier().module(module)
    return copied


def copy_pipeline(pipe: P, own: Iterable[str]) -> P:
    """A pipeline of the same class with its own ``__dict__``, own copies of the modules named in ``own``, and its
    own scheduler and guider. Every other component is shared.

    The new components are put into the instance dict directly: the pipeline's ``__setattr__`` would rewrite its
    configuration, which both pipelines share (it is frozen, and the classes in it stay true).

    Raises:
        CannotCopy: see ``assert_copyable``; nothing was built then.
        BadInput: ``own`` names something that is no module component.
    """
    own = tuple(own)
    assert_copyable(pipe, own)
    copier = _Copier()
    for module in own_modules(pipe, own).values():
        copier.module(module)
    for name, component in components_of(pipe).items():
        if not isinstance(component, nn.Module) and _keeps_state(name, component):
            copier.memo[id(component)] = copy.deepcopy(component)
    copied = object.__new__(type(pipe))
    copied.__dict__.update({key: copier.pipeline_attribute(value) for key, value in vars(pipe).items()})
    return copied


def _keeps_state(name: str, component: Any) -> bool:
    named = name in _STATEFUL_COMPONENTS and component is not None
    return named or hasattr(component, "set_timesteps")


class _Copier:
    """One copying operation. ``memo`` maps the id of an original to its copy, so what was shared stays shared."""

    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}

    def module(self, module: nn.Module) -> Any:
        known = self.memo.get(id(module))
        if known is not None:
            return known
        cls = _own_class(module)
        copied = cls.__new__(cls)
        self.memo[id(module)] = copied
        attributes = copied.__dict__
        for key, value in module.__dict__.items():
            if type(value) in PLAIN_TYPES:
                attributes[key] = value
            elif key not in _DROPPED:
                attributes[key] = self._attribute(key, value)
        attributes.pop("_compiled_call_impl", None)
        return copied

    def pipeline_attribute(self, value: Any) -> Any:
        """The copy of what has one, an own container for plain containers, else the value itself."""
        if type(value) in OWN_CONTAINERS:
            return value.copy()
        return self.memo.get(id(value), value)

    def _attribute(self, key: str, value: Any) -> Any:
        if key == "_modules":
            return type(value)((k, None if part is None else self.module(part)) for k, part in value.items())
        if key in CALL_STATE_KEYS:
            return CALL_STATE_KEYS[key](value)
        if type(value) in OWN_CONTAINERS:
            return value.copy()
        if _is_processor(key, value):
            return self._processor(value)
        return value

    def _processor(self, processor: Any) -> Any:
        if id(processor) not in self.memo:
            self.memo[id(processor)] = copy.copy(processor)
        return self.memo[id(processor)]


def _is_processor(key: str, value: Any) -> bool:
    return key == "processor" or key.endswith("_processor") or type(value).__name__.endswith("Processor")


def _own_class(module: nn.Module) -> type[nn.Module]:
    """The module's class; for a parametrised module a twin of it.

    torch makes such a class for one module and keeps properties on it, which removing a parametrisation deletes:
    with a shared class, removing it from the copy would break the original.
    """
    cls = type(module)
    if "parametrizations" not in module._modules:
        return cls
    namespace = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")}
    twin: type[nn.Module] = type(cls.__name__, cls.__bases__, namespace)
    twin.__qualname__ = cls.__qualname__
    return twin
