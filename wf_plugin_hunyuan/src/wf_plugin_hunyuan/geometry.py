"""From a call's pixels and frames to latents and tokens, with the reasons why a size is not possible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wf_lib_family.sizes import frame_problems, is_whole, side_problems
from wf_plugin_hunyuan.stock import PIPELINE_UNIT, is_15


@dataclass(frozen=True)
class Geometry:
    """The sizes of one call. ``latent`` is (T', H', W'); ``grid`` is after patching."""

    height: int
    width: int
    num_frames: int
    latent: tuple[int, int, int]
    grid: tuple[int, int, int]

    def facts(self) -> dict[str, Any]:
        """As ``run.*`` facts; ``run.tokens`` counts image tokens, without the text beside them."""
        return {
            "run.height": self.height,
            "run.width": self.width,
            "run.num_frames": self.num_frames,
            "run.latent_frames": self.latent[0],
            "run.grid": self.grid,
            "run.tokens": math.prod(self.grid),
        }


def measure(pipe: Any, root: Any, arguments: Mapping[str, Any]) -> tuple[Geometry | None, list[str]]:
    """The geometry of a call and the problems of its sizes; no geometry where there are problems."""
    height, width, problems = _sides(pipe, arguments)
    frames: Any = arguments.get("num_frames")
    config, factor, temporal = root.config, pipe.vae_scale_factor_spatial, pipe.vae_scale_factor_temporal
    if not problems:
        unit = 1 if is_15(root) else PIPELINE_UNIT
        problems += side_problems("height", height, factor, config.patch_size, unit)
        problems += side_problems("width", width, factor, config.patch_size, unit)
    problems += frame_problems(frames, temporal)
    if problems or not (is_whole(height) and is_whole(width) and is_whole(frames)):
        return None, problems
    latent = (frames - 1) // temporal + 1, height // factor, width // factor
    p_t, p = config.patch_size_t, config.patch_size
    return Geometry(height, width, frames, latent, (latent[0] // p_t, latent[1] // p, latent[2] // p)), []


def _sides(pipe: Any, arguments: Mapping[str, Any]) -> tuple[Any, Any, list[str]]:
    """Height and width: as given, or on 1.5 those that the pipeline takes from the image or from its default."""
    if "height" not in arguments:
        return _sides_of_image(pipe, arguments.get("image"))
    height, width = arguments["height"], arguments["width"]
    if height is None and width is None:
        wide, high = pipe.default_aspect_ratio
        return *pipe.video_processor.calculate_default_height_width(high, wide, pipe.target_size), []
    if height is None or width is None:
        return None, None, ["height and width go together: give both, or neither for the model's own size."]
    return height, width, []


def _sides_of_image(pipe: Any, image: Any) -> tuple[Any, Any, list[str]]:
    size = getattr(image, "size", None)
    if not isinstance(size, tuple) or len(size) != 2:
        return None, None, [f"image must be a PIL image, got {type(image).__name__}."]
    wide, high = size
    return *pipe.video_processor.calculate_default_height_width(high, wide, pipe.target_size), []
