"""Whether clips show what their prompts ask for: what a model's plugin may know about its own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PromptScorer = Callable[[Sequence[str], "torch.Tensor"], Sequence[Mapping[str, bool] | None]]
"""``scorer(prompts, clips)``, with clips ``[B, F, H, W, 3]`` float in [0, 1] on the CPU, one for each prompt: per clip
what of its prompt it shows, by kind (``{"colour": True, "digit": False}``), or None for a prompt that cannot be judged.
"""
