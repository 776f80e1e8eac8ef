"""The denoiser's weights in another dtype, on the session's copy, as ``from_pretrained(torch_dtype=...)`` loads them.

``model.to(dtype)`` on a copy would write through to the user's model, which shares the parameters, and ``.half()``
would round what the model keeps in float32. So each parameter is replaced in the copy's own tables. Buffers stay as
they are: the tables of rotary embeddings are made in float32 whatever dtype a model is loaded in.

What stays is told by diffusers' rule: a parameter one of whose parts of the name (``blocks.0.norm2.weight``) is in the
class's ``_keep_in_fp32_modules``.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from wf_core.api import BadInput, RunView, Technique, Variants

ROOTS = ("transformer", "transformer_2")


def floating(root: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """Every floating-point parameter with its name, and whether the model keeps it in float32.

    One that is used under two names comes twice.
    """
    kept = frozenset(getattr(root, "_keep_in_fp32_modules", None) or ())
    for name, parameter in root.named_parameters(remove_duplicate=False):
        if parameter.is_floating_point():
            yield name, parameter, not kept.isdisjoint(name.split("."))


def to_cast(root: nn.Module, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """The parameters, by name, that are not in ``dtype`` and may be: empty for a model that has it already.

    Raises ``BadInput`` for weights that a library keeps in a form of its own, which have no dtype to be cast to.
    """
    found = {name: p for name, p, kept in floating(root) if not kept and p.dtype is not dtype}
    packed = next((name for name, parameter in found.items() if type(parameter) is not nn.Parameter), None)
    if packed is not None:
        raise BadInput(
            f"torch_dtype: {packed} is a {type(found[packed]).__name__} and no plain parameter, and cannot be cast: "
            "load the model in the dtype"
        )
    return found


def cast(parameters: Mapping[str, nn.Parameter], dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """New parameters of the same shape, layout and ``requires_grad``; one that has two names stays one. A gradient that
    reaches one goes on to the parameter that it was cast from.

    They may outlive the session that asks first: made by one that opens under ``torch.inference_mode``, they must still
    let gradients through in the next.
    """
    made: dict[int, nn.Parameter] = {}
    with torch.inference_mode(False):
        for parameter in parameters.values():
            if id(parameter) not in made:
                made[id(parameter)] = _cast_one(parameter, dtype)
    return {name: made[id(parameter)] for name, parameter in parameters.items()}


def _cast_one(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    made = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
    if made.requires_grad:
        made.register_post_accumulate_grad_hook(partial(_pass_on, weakref.ref(parameter)))
    return made


def _pass_on(source: weakref.ref[nn.Parameter], made: torch.Tensor) -> None:
    """Adds a cast parameter's gradient to the source's, where the user's optimiser looks, and keeps it nowhere else."""
    parameter, grad, made.grad = source(), made.grad, None
    if parameter is None or grad is None:
        return
    grad = grad.to(parameter.dtype)
    parameter.grad = grad if parameter.grad is None else parameter.grad + grad


def put(root: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Enter parameters into the tables of the modules that have them, past ``nn.Module``'s own registration hooks."""
    for name, parameter in parameters.items():
        path, _, leaf = name.rpartition(".")
        root.get_submodule(path)._parameters[leaf] = parameter


class Cast:
    """What was cast of one root, and the user's parameters that it was cast from."""

    def __init__(self, name: str, root: nn.Module, dtype: torch.dtype) -> None:
        self._root = root
        self._key = f"{name}:{_name(dtype)}"
        self._sources = tuple(root.parameters())
        self._build = partial(cast, to_cast(root, dtype), dtype)
        self._stamp: tuple[object, ...] = ()

    def take(self, variants: Variants) -> bool:
        """Put the cast weights into the copy, made anew where the user's were written to; whether that was needed."""
        stamp = tuple((p.data_ptr(), -1 if p.is_inference() else p._version) for p in self._sources)
        if stamp == self._stamp:
            return False
        again, self._stamp = bool(self._stamp), stamp
        put(self._root, variants.get(self._key, self._sources, self._build))
        return again


class WeightDtype(Technique):
    """Casts each denoiser once per base and dtype: sessions on one base share what was cast.

    Counts ``casts_made_anew``: weights of the user's that were changed in place since (an adapter merged into them, a
    step of an optimiser) are cast again at the begin of the next run.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._roots: list[nn.Module] = []
        self._casts: list[Cast] = []

    def prepare(self, components: Mapping[str, Any]) -> None:
        for name in ROOTS:
            root = components.get(name)
            if root is None:
                continue
            self._roots.append(root)
            if to_cast(root, self._dtype):
                self._casts.append(Cast(name, root, self._dtype))
                self._casts[-1].take(self.variants)

    def begin(self, run: RunView) -> None:
        """Counts the parameters in the dtype, and those that the model keeps in float32 and that are in less."""
        self.counters.add("casts_made_anew", sum(each.take(self.variants) for each in self._casts))
        for _, parameter, kept in self._floating():
            if kept and parameter.dtype is not torch.float32:
                self.counters.add("kept_in_fp32_rounded")
            if parameter.dtype is self._dtype:
                self.counters.add("parameters_in_dtype")

    def evidence(self) -> Mapping[str, object]:
        """How many floating-point parameters of the denoisers have which dtype."""
        return {"dtypes": dict(Counter(_name(parameter.dtype) for _, parameter, _ in self._floating()))}

    def close(self) -> None:
        self._roots, self._casts = [], []

    def _floating(self) -> Iterator[tuple[str, nn.Parameter, bool]]:
        for root in self._roots:
            yield from floating(root)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
