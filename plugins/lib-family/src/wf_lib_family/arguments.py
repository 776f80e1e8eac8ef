"""What the arguments of a pipeline's call amount to, in the words that diffusers' video pipelines share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def count_prompts(arguments: Mapping[str, Any]) -> int | None:
    """How many prompts a call has, as text or as embeddings; None where it has neither."""
    prompt, embeds = arguments.get("prompt"), arguments.get("prompt_embeds")
    if isinstance(prompt, str):
        return 1
    if isinstance(prompt, list):
        return len(prompt)
    return None if embeds is None else int(embeds.shape[0])


def latents_fit(arguments: Mapping[str, Any], wanted: tuple[int, ...]) -> Iterator[str]:
    """Latents of the caller's own must have the shape ``[B, C, T', H', W']`` that the pipeline would have drawn."""
    latents = arguments.get("latents")
    found = tuple(getattr(latents, "shape", ()))
    if latents is not None and found != wanted:
        yield (
            f"latents have shape {found}, but this call needs {wanted}: "
            "batch, channels, latent frames, latent height, latent width."
        )
