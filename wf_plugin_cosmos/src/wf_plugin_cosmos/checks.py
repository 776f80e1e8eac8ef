"""Reasons why a call cannot be made as asked, other than its sizes and schedule. Reads only; loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from diffusers.models.transformers import transformer_cosmos
from torch import nn

from wf_core.api import Calibrator, FeatureCache
from wf_lib_family import arguments as arguments_of
from wf_plugin_cosmos.geometry import Geometry, count_chunks, frames_at_once
from wf_plugin_cosmos.stock import PREDICT2_5, TRANSFER2_5, generation, takes_video

OF_ONE_LOOP = (FeatureCache, Calibrator)
"""Techniques that go by the steps of one denoising loop, whatever they declare: what they keep is for later steps."""
STATE = "host-state"
"""The declared effect of all others of which that may be so: what is computed depends on the calls before."""


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
    """In a clip of several chunks each is denoised anew, and nothing kept of its steps may reach the next. What is
    kept of the text may. A technique whose effects nobody has declared may keep anything.
    """
    chunks = count_chunks(pipe, arguments)
    calls = getattr(root, "_wf", None)
    if chunks == 1 or calls is None:
        return
    effects = calls.wiring.effects
    stepwise = [
        name
        for name, part in calls.wiring.techniques.items()
        if isinstance(part, OF_ONE_LOOP) or STATE in effects.get(name, {STATE})
    ]
    if stepwise:
        yield (
            f"the clip is made in {chunks} chunks, each denoised from the first step to the last, and what "
            f"{', '.join(stepwise)} may keep of the steps of one must not reach the next: ask for at most "
            f"{frames_at_once(pipe, arguments)} frames, or leave the technique out."
        )


def one_dtype(pipe: Any, root: Any, arguments: Mapping[str, Any], branches: int) -> Iterator[str]:
    """The stock pipelines hand on the text, and Transfer2.5 its controls, in the dtype that they have, which would fail
    at the first product with weights in another. Under autocast, products take any.
    """
    kind = generation(pipe)
    if not kind or any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        return
    takes = _dtype_for_text(root)
    for name in ("prompt", "negative_prompt")[:branches]:
        text = _dtype_of_text(pipe, arguments, name)
        if takes is not None and text is not None and text is not takes:
            yield f"the {name} is embedded in {_name(text)}, and {_must_be(takes, 'the text')}"
    if kind == TRANSFER2_5 and getattr(pipe, "controlnet", None) is not None:
        yield from _dtype_of_controls(pipe, root)


def _dtype_of_controls(pipe: Any, root: Any) -> Iterator[str]:
    """The control network is given the transformer's latents, and controls encoded by the VAE."""
    control, vae = pipe.controlnet.dtype, getattr(pipe, "vae", None)
    if control is not root.dtype:
        yield f"the control network is in {_name(control)}, and {_must_be(root.dtype, 'its latents')}"
    elif vae is not None and torch.promote_types(control, vae.dtype) is not control:
        yield f"the VAE encodes the controls in {_name(vae.dtype)}, and {_must_be(control, 'the controls')}"


def _must_be(dtype: torch.dtype, what: str) -> str:
    return (
        f"the transformer is in {_name(dtype)}, without the pipeline casting {what}: load the whole pipeline in one "
        "dtype (from_pretrained(torch_dtype=...)), and leave out torch_dtype where it asks for another."
    )


def _dtype_for_text(root: Any) -> torch.dtype | None:
    """The dtype of the weights that the text meets first; None for weights in a form of their own."""
    projection = getattr(root, "crossattn_proj", None)
    layer = root.transformer_blocks[0].attn2.to_k if projection is None else projection[0]
    weight = getattr(layer, "weight", None)
    plain = type(weight) is nn.Parameter and weight.is_floating_point() and weight.element_size() > 1
    return weight.dtype if plain else None


def _dtype_of_text(pipe: Any, arguments: Mapping[str, Any], name: str) -> torch.dtype | None:
    """The dtype of the embeddings that are given, else of those that the text encoder will give."""
    given = arguments.get(f"{name}_embeds")
    source = getattr(pipe, "text_encoder", None) if given is None else given
    dtype: torch.dtype | None = getattr(source, "dtype", None)
    return dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
