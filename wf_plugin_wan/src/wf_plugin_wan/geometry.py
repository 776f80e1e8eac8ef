"""From a call's pixels and frames to latents and tokens, with the reasons why a size is not possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

PIPELINE_UNIT = 16
"""The stock pipelines other than VACE refuse a height or width that is not a multiple of 16."""


@dataclass(frozen=True)
class Geometry:
    """The sizes of one call. ``latent`` is (T', H', W') with VACE's reference frames; ``grid`` is after patching."""

    height: int
    width: int
    num_frames: int
    reference_frames: int
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
            "run.reference_frames": self.reference_frames,
            "run.grid": self.grid,
            "run.tokens": self.tokens,
        }


def measure(pipe: Any, root: Any, arguments: Mapping[str, Any]) -> tuple[Geometry | None, list[str]]:
    """The geometry of a call and the problems of its sizes; no geometry where there are problems."""
    patch = tuple(root.config.patch_size)
    height: Any = arguments.get("height")
    width: Any = arguments.get("width")
    problems = [
        *_side("height", height, pipe, patch[1]),
        *_side("width", width, pipe, patch[2]),
    ]
    frames = count_frames(arguments, pipe.vae_scale_factor_temporal)
    if "num_frames" in arguments:
        problems += _frames(frames, pipe.vae_scale_factor_temporal)
    if problems or not (_whole(height) and _whole(width) and _whole(frames)):
        return None, problems
    factor, temporal = pipe.vae_scale_factor_spatial, pipe.vae_scale_factor_temporal
    references = count_references(arguments.get("reference_images"))
    latent_frames = (frames - 1) // temporal + 1
    latent = latent_frames + references, height // factor, width // factor
    grid = latent[0] // patch[0], latent[1] // patch[1], latent[2] // patch[2]
    effective = (latent_frames - 1) * temporal + 1
    return Geometry(height, width, effective, references, latent, grid), []


def count_frames(arguments: Mapping[str, Any], temporal: int) -> Any:
    """``num_frames``; for video-to-video the frames of the input video, or those that ``latents`` stand for."""
    if "num_frames" in arguments:
        return arguments["num_frames"]
    latents, video = arguments.get("latents"), arguments.get("video")
    if latents is not None:
        return None if getattr(latents, "ndim", 0) != 5 else (latents.shape[2] - 1) * temporal + 1
    return None if video is None else frames_of(video)


def frames_of(video: Any) -> int | None:
    """Frames of one video as the pipelines take it: images, or an array ``[F, ...]``, or a batch ``[B, F, ...]``."""
    shape = getattr(video, "shape", None)
    if shape is not None:
        return int(shape[1] if len(shape) == 5 else shape[0])
    if not isinstance(video, Sequence) or not video:
        return None
    first = video[0]
    if isinstance(first, Sequence) or len(getattr(first, "shape", ())) == 4:
        return len(first)
    return len(video)


def count_references(images: Any) -> int:
    """VACE's reference images of one video: each adds one latent frame."""
    if images is None:
        return 0
    if not isinstance(images, Sequence):
        return 1
    listed = images[0] if images and isinstance(images[0], Sequence) else images
    return sum(image is not None for image in listed)


def _side(name: str, value: Any, pipe: Any, patch: int) -> list[str]:
    factor = pipe.vae_scale_factor_spatial
    unit, why = factor * patch, f"VAE factor {factor} x patch {patch}"
    if not any(kind.__name__ == "WanVACEPipeline" for kind in type(pipe).__mro__):
        unit = math.lcm(unit, PIPELINE_UNIT)
        why += "" if unit == factor * patch else f", and the pipeline asks for multiples of {PIPELINE_UNIT}"
    if not _whole(value) or value < 1:
        return [f"{name} must be a whole number of pixels of at least {unit}, got {value!r}."]
    if value % unit == 0:
        return []
    nearest = _between(value // unit * unit, unit, unit)
    return [f"{name} {value} is not a multiple of {unit} ({why}); the nearest legal values are {nearest}."]


def _frames(value: Any, temporal: int) -> list[str]:
    if not _whole(value):
        return [f"num_frames must be a whole number of the form {temporal}k + 1, got {value!r}."]
    if value >= 1 and value % temporal == 1 % temporal:
        return []
    below = (value - 1) // temporal * temporal + 1
    return [
        f"num_frames {value} is not of the form {temporal}k + 1; "
        f"the nearest legal values are {_between(below, temporal, 1)}."
    ]


def _between(below: int, step: int, least: int) -> str:
    return f"{below} and {below + step}" if below >= least else f"{least} and {least + step}"


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
