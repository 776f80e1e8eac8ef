"""Reasons why a call cannot be made as asked, other than its sizes and schedule. Reads only; loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wf_lib_family import arguments as arguments_of
from wf_plugin_hunyuan.geometry import Geometry
from wf_plugin_hunyuan.stock import is_15

BESIDE = {
    "prompt_embeds": ("pooled_prompt_embeds", "prompt_attention_mask"),
    "negative_prompt_embeds": ("negative_pooled_prompt_embeds", "negative_prompt_attention_mask"),
}
"""What the HunyuanVideo pipelines need beside embeddings, and look for only after the text encoder."""


def parts(pipe: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """A VAE that is missing would be missed only after the text encoder, or after all steps."""
    if getattr(pipe, "vae", None) is not None:
        return
    if "image" in arguments:
        yield "the pipeline has no VAE to encode its image with; load one."
    elif arguments.get("output_type") != "latent":
        yield 'the pipeline has no VAE to decode with; load one, or pass output_type="latent".'


def text_complete(root: Any, arguments: Mapping[str, Any], branches: int) -> Iterator[str]:
    """Embeddings of HunyuanVideo come with their mask and the pooled ones; 1.5 checks its own."""
    if is_15(root):
        return
    for name in list(BESIDE)[:branches]:
        missing = [other for other in BESIDE[name] if arguments.get(other) is None]
        if arguments.get(name) is not None and missing and arguments.get("prompt") is None:
            yield f"{name} are given without {' and '.join(missing)}, which the transformer needs: pass them too."


def image_form(root: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """The image-to-video pipeline of HunyuanVideo knows two forms of a condition, and stops late on any other."""
    if "image" in arguments and not is_15(root) and root.config.image_condition_type is None:
        yield (
            "this transformer takes no image (image_condition_type is None); use HunyuanVideoPipeline, or load an "
            "image-to-video checkpoint."
        )


def one_video_each(pipe: Any, root: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """The text-to-video pipeline of 1.5 repeats everything for several videos but the (empty) image tokens."""
    count = arguments.get("num_videos_per_prompt") or 1
    if is_15(root) and "image" not in arguments and count > 1:
        yield (
            f"num_videos_per_prompt is {count}, and {type(pipe).__name__} fails with more than 1: it does not repeat "
            "its image tokens; give the prompt that many times instead."
        )


def one_clip_decoded(pipe: Any, root: Any, arguments: Mapping[str, Any], batch: int | None) -> Iterator[str]:
    """The VAE of 1.5 fails on a batch, after all steps, unless it takes the clips one by one."""
    vae = getattr(pipe, "vae", None)
    if vae is None or arguments.get("output_type") == "latent" or batch is None or batch == 1:
        return
    if is_15(root) and not vae.use_slicing:
        yield (
            f"this call decodes {batch} clips, and the VAE of HunyuanVideo-1.5 fails on more than 1 at a time: "
            "call pipe.vae.enable_slicing() before the session is opened."
        )


def latents_fit(
    pipe: Any, root: Any, arguments: Mapping[str, Any], batch: int | None, geometry: Geometry
) -> Iterator[str]:
    """Latents of the caller's own must have the shape that the pipeline would have drawn."""
    if batch is not None:
        yield from arguments_of.latents_fit(arguments, (batch, _channels(pipe, root), *geometry.latent))


def _channels(pipe: Any, root: Any) -> int:
    if is_15(root):
        return int(pipe.num_channels_latents)
    channels = int(root.config.in_channels)
    return (channels - 1) // 2 if root.config.image_condition_type == "latent_concat" else channels
