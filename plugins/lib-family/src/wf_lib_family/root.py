"""The subclass of a transformer root: it tells the wiring which call is being made, and stands for the outer seams."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from wf_core.api import Context, Wiring, specialise
from wf_lib_family.closed import SLOT, close_slot
from wf_lib_family.sites import Wrap

NEEDED = ("hidden_states", "timestep", "encoder_hidden_states")
Grid = Callable[[torch.Tensor], tuple[int, int, int]]
"""hidden_states ``[B, C, T', H', W']`` -> the token grid (frames, height, width)."""


class RootCalls:
    """Every call of one root: ``guidance`` around ``denoiser`` around the stock (or open) forward.

    Handlers get the call's arguments as one mapping by name, without ``return_dict``, and return the sample
    ``[B, C, T', H', W']``.
    """

    def __init__(
        self,
        root: Any,
        expert: str,
        wiring: Wiring,
        wrap: Wrap,
        forward: Callable[..., Any],
        grid: Grid,
        channels: int,
    ) -> None:
        self.wiring = wiring
        self._root = root
        self._expert = expert
        self._forward = forward
        self._grid = grid
        self._channels = channels
        self._names = tuple(inspect.signature(type(root).forward).parameters)[1:]
        stock = functools.partial(_sample, forward, root)
        self._chain = wrap("guidance", wrap("denoiser", stock))
        self._claimed = self._chain is not stock

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = dict(zip(self._names, args, strict=False), **kwargs) if args else kwargs
        if any(name not in named for name in NEEDED):
            return self._forward(self._root, *args, **kwargs)  # the stock forward says what is missing
        compute: Callable[[], Any] = functools.partial(self._forward, self._root, *args, **kwargs)
        if self._claimed:
            compute = functools.partial(self._through_seams, named)
        text = named["encoder_hidden_states"]
        return self.wiring.call(
            self._expert,
            named["timestep"],
            text[0]
            if isinstance(text, tuple)
            else text,  # a pair: the image tokens are the same in both branches
            self._grid(named["hidden_states"]),
            compute,
            gradients=torch.is_grad_enabled() and self._differentiable(named),
        )

    def _differentiable(self, named: Mapping[str, Any]) -> bool:
        """Whether a weight or an argument takes a gradient."""
        tensors = itertools.chain(self._root.parameters(), _tensors_in(named))
        return any(tensor.requires_grad for tensor in tensors)

    def _through_seams(self, named: Mapping[str, Any]) -> Any:
        arguments = dict(named)
        return_dict = arguments.pop("return_dict", True)
        sample = self._chain(arguments)
        batch, _, *latent = named["hidden_states"].shape
        self.wiring.require(sample, (batch, self._channels, *latent), "guidance", "denoiser")
        return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)


def _sample(forward: Callable[..., Any], root: Any, arguments: Mapping[str, Any]) -> Any:
    """The end of the chain: the stock (or open) forward."""
    return forward(root, **arguments, return_dict=False)[0]


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument, which may be a list or a mapping of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors_in(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors_in(part)


def _namespace(stock: Any) -> Mapping[str, Any]:
    @contextmanager
    def cache_context(self: Any, name: str, **fields: Any) -> Iterator[None]:
        wiring: Wiring = getattr(self, SLOT).wiring
        with stock.cache_context(self, name, **fields):
            wiring.enter_context(Context(name, fields.get("step_index"), fields.get("num_inference_steps")))
            try:
                yield
            finally:
                wiring.enter_context(None)

    @functools.wraps(stock.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._wf(args, kwargs)

    return {"forward": forward} | (
        {"cache_context": cache_context} if hasattr(stock, "cache_context") else {}
    )


def patches(patch: tuple[int, int, int]) -> Grid:
    """The grid of a model that cuts its latents into patches (frames, height, width)."""

    def grid(hidden_states: torch.Tensor) -> tuple[int, int, int]:
        frames, height, width = hidden_states.shape[2:]
        p_t, p_h, p_w = patch
        return frames // p_t, height // p_h, width // p_w

    return grid


def install_root(
    root: Any,
    expert: str,
    wiring: Wiring,
    wrap: Wrap,
    open_forward: Callable[..., Any] | None,
    *,
    grid: Grid,
    channels: int,
) -> None:
    """Make ``root`` report its calls; its samples have ``channels``. ``open_forward(root, ...)`` stands in for the
    stock forward where given.
    """
    forward = open_forward or type(root).forward
    setattr(root, SLOT, RootCalls(root, expert, wiring, wrap, forward, grid, channels))
    specialise(root, _namespace)


def close_root(root: Any) -> None:
    """Cut the two cycles through a root: the session's slot, and the registry that ``cache_context`` made on it."""
    close_slot(root)
    root.__dict__.pop("_diffusers_hook", None)
