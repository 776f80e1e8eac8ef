"""Attributes of a module that torch knows nothing about: per-call state, and modules or tensors hidden in them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn


def _emptied(value: Any) -> Any:
    """A container of the same length without its tensors; anything that is no list starts as None."""
    return [None] * len(value) if isinstance(value, list) else None


def _rewound(value: Any) -> Any:
    """A position counter, kept in a list of one number, back at its start."""
    return [0] * len(value) if isinstance(value, list) else 0


def _kept(value: Any) -> Any:
    return value


#: Instance attributes that a model writes during a call, and how a copy starts with them. A copy must not take
#: over the tensors: they belong to a call of the original. All of these are the causal cache of the Wan video VAE
#: (and of its relatives), which appears at the first use and stays populated after a call that was aborted.
CALL_STATE_KEYS: Mapping[str, Callable[[Any], Any]] = {
    "_feat_map": _emptied,
    "_enc_feat_map": _emptied,
    "_conv_idx": _rewound,
    "_enc_conv_idx": _rewound,
    "_conv_num": _kept,
    "_enc_conv_num": _kept,
}

#: Attributes of ``nn.Module`` itself, each of which is copied by its own rule.
REGISTERED_KEYS = frozenset(vars(nn.Module())) | {"_diffusers_hook", "_compiled_call_impl", "forward"}
PLAIN_TYPES = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout}
)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_MAX_DEPTH = 4
#: Containers of which a copy gets its own; subclasses (such as the frozen configurations) are shared.
OWN_CONTAINERS = frozenset({list, dict, set, OrderedDict, deque})


def call_state_tensors(module: nn.Module) -> int:
    """How many tensors the per-call containers of ``CALL_STATE_KEYS`` hold; 0 for an idle model."""
    found = (inside(module.__dict__[key], key) for key in CALL_STATE_KEYS if key in module.__dict__)
    return sum(isinstance(value, torch.Tensor) for values in found for _, value in values)


def inside(value: Any, path: str, depth: int = _MAX_DEPTH) -> Iterator[tuple[str, Any]]:
    """Every Module, Tensor and bound method of a Module that ``value`` is or holds, with its path.

    Looks into containers, partials, closures and the instance attributes of other objects, ``depth`` levels down.
    """
    if type(value) in PLAIN_TYPES:
        return
    if isinstance(value, (nn.Module, torch.Tensor)) or (
        isinstance(value, MethodType) and isinstance(value.__self__, nn.Module)
    ):
        yield path, value
    elif depth:
        for name, part in _parts(value):
            yield from inside(part, path + name, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, _CONTAINERS):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, partial):
        yield from ((f"(argument {i})", part) for i, part in enumerate((value.func, *value.args)))
        yield from ((f"(argument {name})", part) for name, part in value.keywords.items())
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, FunctionType):
        yield from _closure(value)
    elif not isinstance(value, (type, ModuleType)):
        yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _closure(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"(closure {name})", cell.cell_contents
        except ValueError:  # a variable that was never assigned
            continue


def hidden_references(module: nn.Module, path: str) -> Iterator[tuple[str, Any]]:
    """What ``inside`` finds in the attributes of this one module that torch does not register, with paths."""
    for key, value in module.__dict__.items():
        if type(value) not in PLAIN_TYPES and key not in REGISTERED_KEYS and key not in CALL_STATE_KEYS:
            yield from inside(value, f"{path}.{key}")


def hidden_tensors(module: nn.Module, name: str = "model") -> list[str]:
    """Paths of tensors in attributes that torch does not register. A copy shares them with its original.

    Registered parameters that are merely listed once more (as recurrent layers do) do not count.
    """
    registered = {id(t) for t in (*module.parameters(), *module.buffers())}
    found = (
        pair for path, part in module.named_modules(prefix=name) for pair in hidden_references(part, path)
    )
    return [path for path, value in found if isinstance(value, torch.Tensor) and id(value) not in registered]
