"""A bench: a tiny pipeline of a model family, and short calls of it. What the checks of a technique run on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from wf_core.errors import BadInput

SEED = 5


@attrs.frozen
class Bench:
    """``pipeline()`` builds the same pipeline every time, from a fixed seed, in evaluation mode without gradients.

    ``call`` holds the arguments of a short call without its generator: two solver steps or more, guidance on if the
    family has it. ``other`` changes its size and its number of steps; ``latent`` changes it so that nothing is decoded.
    """

    pipeline: Callable[[], Any]
    call: Mapping[str, Any]
    other: Mapping[str, Any]
    latent: Mapping[str, Any] = attrs.field(factory=lambda: {"output_type": "latent"})

    def arguments(self, seed: int = SEED, **changes: Any) -> dict[str, Any]:
        """Arguments for one call, with a generator of its own."""
        import torch

        return {**self.call, **changes, "generator": torch.Generator("cpu").manual_seed(seed)}


def bench_at(place: str) -> Bench:
    """The bench that ``package.module:function`` gives, as a family's manifest names it under ``trial``."""
    module, _, name = place.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"trial {place!r}: {error}") from None
    if not isinstance(made, Bench):
        raise BadInput(f"trial {place!r} must give a wf_core.testing.Bench, not {type(made).__name__}")
    return made


def seeded(build: Callable[..., Any], *args: Any, seed: int = 0, **kwargs: Any) -> Any:
    """A model from a fixed seed, in evaluation mode, without gradients; the caller's random stream is untouched."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(*args, **kwargs)
    return model.eval().requires_grad_(False)
