"""A bench: a tiny pipeline of a model family, and short calls of it. What the checks of a technique run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

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


def seeded(build: Callable[..., Any], *args: Any, seed: int = 0, **kwargs: Any) -> Any:
    """A model from a fixed seed, in evaluation mode, without gradients; the caller's random stream is untouched."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(*args, **kwargs)
    return model.eval().requires_grad_(False)
