"""Reasons why a call cannot be made as asked, other than its sizes and schedule. Reads only; loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from wf_plugin_wan.geometry import Geometry
from wf_plugin_wan.stock import TEXT_TOKENS

_SPLIT = f"this model takes image tokens beside the text and needs exactly {TEXT_TOKENS}."


def rope_tables(roots: Mapping[str, Any]) -> Iterator[str]:
    """The rope tables must be as they were built: a blanket ``.to(dtype)`` rounds them."""
    for name, root in roots.items():
        dtype = root.rope.freqs_cos.dtype
        if dtype != torch.float32:
            yield (
                f"the rope tables of {name} were rounded to {str(dtype).removeprefix('torch.')}; "
                "load with dtype instead of .to, which keeps them in float32."
            )


def rope_length(roots: Mapping[str, Any], geometry: Geometry) -> Iterator[str]:
    """No side of the token grid may be longer than the rope tables."""
    for name, root in roots.items():
        longest = root.rope.freqs_cos.shape[0]
        for side, size in zip(("frames", "height", "width"), geometry.grid, strict=True):
            if size > longest:
                yield f"{size} tokens of {side} exceed the rope table of {name}, which ends at {longest}; ask for less."


def text_length(roots: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    """A model with image tokens splits its context at exactly 512 text tokens, whatever it is given."""
    if not any(root.config.added_kv_proj_dim for root in roots.values()):
        return
    for name in ("prompt_embeds", "negative_prompt_embeds"):
        embeds = arguments.get(name)
        if embeds is not None and embeds.shape[1] != TEXT_TOKENS:
            yield f"{name} have {embeds.shape[1]} text tokens, but {_SPLIT}"
    length = arguments.get("max_sequence_length", TEXT_TOKENS)
    if arguments.get("prompt") is not None and length != TEXT_TOKENS:
        yield f"max_sequence_length is {length}, but {_SPLIT}"


def parts(pipe: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """A VAE that is missing would be missed only after the text encoder, or after all steps."""
    if getattr(pipe, "vae", None) is not None:
        return
    conditioned = "last_image" in arguments or "conditioning_scale" in arguments
    if conditioned or arguments.get("video") is not None:
        yield "the pipeline has no VAE to encode its input with; load one."
    elif arguments.get("output_type") != "latent":
        yield 'the pipeline has no VAE to decode with; load one, or pass output_type="latent".'
