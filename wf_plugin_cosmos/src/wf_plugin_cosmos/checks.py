"""Reasons why a call cannot be made as asked, other than its sizes and schedule. Reads only; loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diffusers.models.transformers import transformer_cosmos

from wf_lib_family import arguments as arguments_of
from wf_plugin_cosmos.geometry import Geometry, count_chunks, frames_at_once
from wf_plugin_cosmos.stock import PREDICT2_5, generation, takes_video

OF_ONE_LOOP = ("guidance", "denoiser", "stack", "block", "branch")
"""Seams whose claims may keep something from one step to the next."""


def packages(pipe: Any, root: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """The stock code finds out in the middle of a call that torchvision is missing."""
    if hasattr(transformer_cosmos, "transforms"):
        return
    if root.config.concat_padding_mask or "controls" in arguments:
        who = "model" if root.config.concat_padding_mask else "control network"
        yield f"torchvision is not installed, with which the {who} resizes its padding mask: install torchvision."
    elif generation(pipe) == PREDICT2_5 and arguments.get("image") is not None:
        yield "torchvision is not installed, with which the pipeline reads an image: install torchvision."


def safety(pipe: Any) -> Iterator[str]:
    """The stock pipelines refuse to run without their safety checker, and so does a session."""
    if generation(pipe) and getattr(pipe, "safety_checker", None) is None:
        yield (
            "the pipeline has no safety checker, which the licence of the models asks for: "
            "install cosmos_guardrail and load the pipeline again."
        )


def parts(pipe: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """A VAE that is missing would be missed only after the text encoder, or after all steps."""
    if getattr(pipe, "vae", None) is not None:
        return
    if takes_video(arguments):
        yield "the pipeline has no VAE to encode its input with; load one."
    elif arguments.get("output_type") != "latent":
        yield 'the pipeline has no VAE to decode with; load one, or pass output_type="latent".'


def positions(root: Any, geometry: Geometry) -> Iterator[str]:
    """Rotary positions end at the longest side of ``max_size``, learned ones at its own for each side."""
    pairs = zip(root.config.max_size, root.config.patch_size, strict=True)
    own = [size // patch for size, patch in pairs]
    limits = own if root.config.extra_pos_embed_type else [max(own)] * 3
    for side, size, limit in zip(("frames", "height", "width"), geometry.grid, limits, strict=True):
        if size > limit:
            yield f"{size} tokens of {side} exceed the model's positions, which end at {limit}; ask for less."


def latents_fit(
    root: Any, arguments: Mapping[str, Any], batch: int | None, geometry: Geometry
) -> Iterator[str]:
    """Latents of the caller's own must have the shape that the pipeline would have drawn."""
    if batch is not None:
        channels = root.config.in_channels - takes_video(arguments)
        yield from arguments_of.latents_fit(arguments, (batch, channels, *geometry.latent))


def one_loop(pipe: Any, root: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """In a clip of several chunks every chunk is denoised anew, and nothing kept of one may reach the next."""
    chunks = count_chunks(pipe, arguments)
    calls = getattr(root, "_wf", None)
    if chunks == 1 or calls is None or not calls.wiring.seams.claimed(*OF_ONE_LOOP):
        return
    yield (
        f"the clip is made in {chunks} chunks, and what this session keeps from step to step must not reach the next "
        f"one: ask for at most {frames_at_once(pipe, arguments)} frames, or leave the technique out."
    )
