"""From a call's pixels and frames to latents and tokens, with the reasons why a size is not possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wf_lib_family.sizes import frame_problems, is_whole, side_problems
from wf_plugin_cosmos.stock import TRANSFER2_5, generation

PIPELINE_UNIT = 16
"""The stock pipelines refuse a height or width that is not a multiple of 16."""


@dataclass(frozen=True)
class Geometry:
    """The sizes of one call. ``latent`` is (T', H', W') of what is denoised at once, ``grid`` the same after patching:
    the whole clip, but for Transfer2.5, which makes it in chunks of ``num_frames_per_chunk``.
    """

    height: int
    width: int
    num_frames: int
    latent: tuple[int, int, int]
    grid: tuple[int, int, int]

    @property
    def tokens(self) -> int:
        return math.prod(self.grid)

    def facts(self) -> dict[str, Any]:
        return {
            "run.height": self.height,
            "run.width": self.width,
            "run.num_frames": self.num_frames,
            "run.latent_frames": self.latent[0],
            "run.grid": self.grid,
            "run.tokens": self.tokens,
        }


def measure(pipe: Any, root: Any, arguments: Mapping[str, Any]) -> tuple[Geometry | None, list[str]]:
    """The geometry of a call and the problems of its sizes; no geometry where there are problems."""
    p_t, p_h, p_w = root.config.patch_size
    space, time = pipe.vae_scale_factor_spatial, pipe.vae_scale_factor_temporal
    height: Any = arguments.get("height")
    width: Any = width_of(arguments)
    problems = side_problems("height", height, space, p_h, PIPELINE_UNIT)
    if width is not None or "controls" not in arguments:
        problems += side_problems("width", width, space, p_w, PIPELINE_UNIT)
    clip, at_once = clip_frames(arguments), frames_at_once(pipe, arguments)
    if generation(pipe) != TRANSFER2_5:
        problems += frame_problems(clip, time)
    if problems or not (is_whole(width) and is_whole(clip) and is_whole(at_once)):
        return None, problems
    latent = (at_once - 1) // time + 1, height // space, width // space
    grid = latent[0] // p_t, latent[1] // p_h, latent[2] // p_w
    return Geometry(height, width, clip, latent, grid), []


def clip_frames(arguments: Mapping[str, Any]) -> Any:
    """Frames of the clip: ``num_frames``, 1 for an image; under controls no more than these have."""
    frames = arguments.get("num_frames")
    if "controls" not in arguments:
        return arguments.get("num_frames", 1)
    given = frames_of(arguments["controls"])
    return frames if given is None else given if frames is None else min(given, frames)


def frames_at_once(pipe: Any, arguments: Mapping[str, Any]) -> Any:
    """Frames that are denoised together: the clip, or a chunk of it, which has a latent frame after the first."""
    chunk = arguments.get("num_frames_per_chunk")
    return clip_frames(arguments) if chunk is None else max(chunk, pipe.vae_scale_factor_temporal + 1)


def count_chunks(pipe: Any, arguments: Mapping[str, Any]) -> int:
    """How many denoising loops the call makes, one after another, each with the full number of steps."""
    chunk, clip = frames_at_once(pipe, arguments), clip_frames(arguments)
    if "num_frames_per_chunk" not in arguments or clip is None:
        return 1
    shared = shared_frames(pipe, arguments)
    return len(range(0, clip - shared, chunk - shared)) if 0 <= shared < min(chunk, clip) else 1


def shared_frames(pipe: Any, arguments: Mapping[str, Any]) -> int:
    """Frames that a chunk takes over from the one before it."""
    latents = arguments.get("num_ar_latent_conditional_frames")
    if latents is None:
        return int(arguments.get("num_ar_conditional_frames") or 0)
    return max(0, (int(latents) - 1) * int(pipe.vae_scale_factor_temporal) + 1)


def width_of(arguments: Mapping[str, Any]) -> Any:
    """``width``; where it is left out, what the pipeline makes of the controls' proportions (None if not known)."""
    width, height = arguments.get("width"), arguments.get("height")
    if width is not None or "controls" not in arguments or not is_whole(height):
        return width
    frame = arguments["controls"]
    while isinstance(frame, list) and frame:
        frame = frame[0]
    shape = getattr(frame, "shape", None)
    wide, high = getattr(frame, "size", (0, 0)) if shape is None else (shape[-1], shape[-2])
    return int((height + 16) * (wide / high)) if high else None


def frames_of(video: Any) -> int | None:
    """Frames of one video as the pipelines take it: images, or an array ``[F, ...]``, or a batch ``[B, F, ...]``; a
    tensor that is preprocessed already is ``[B, 3, F, H, W]``.
    """
    shape = getattr(video, "shape", None)
    if shape is not None:
        return int(shape[1] if len(shape) == 5 else shape[0])
    if not isinstance(video, Sequence) or not video:
        return None
    first = video[0]
    if isinstance(first, Sequence) or len(getattr(first, "shape", ())) == 4:
        return len(first)
    return len(video)
