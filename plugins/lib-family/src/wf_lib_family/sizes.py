"""Whether pixels and frames of a call fit the VAE and the patches, with the nearest values that do."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any


def is_whole(value: Any) -> bool:
    """Whether the value is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def side_problems(name: str, value: Any, factor: int, patch: int, pipeline_unit: int = 1) -> list[str]:
    """Why ``value`` is no height or width (``name``) for a VAE of ``factor`` pixels per latent and a patch of ``patch``
    latents. ``pipeline_unit``: the pipeline itself asks for multiples of so many pixels.
    """
    own = factor * patch
    unit = math.lcm(own, pipeline_unit)
    if not is_whole(value) or value < 1:
        return [f"{name} must be a whole number of pixels of at least {unit}, got {value!r}."]
    if value % unit == 0:
        return []
    also = "" if unit == own else f", and the pipeline asks for multiples of {pipeline_unit}"
    why = f"VAE factor {factor} x patch {patch}{also}"
    nearest = _around(value // unit * unit, unit, unit)
    return [f"{name} {value} is not a multiple of {unit} ({why}); the nearest legal values are {nearest}."]


def frame_problems(value: Any, factor: int) -> list[str]:
    """Why ``value`` is no number of frames for a VAE of ``factor`` frames per latent frame after the first."""
    if not is_whole(value):
        return [f"num_frames must be a whole number of the form {factor}k + 1, got {value!r}."]
    if value >= 1 and (value - 1) % factor == 0:
        return []
    nearest = _around((value - 1) // factor * factor + 1, factor, 1)
    return [f"num_frames {value} is not of the form {factor}k + 1; the nearest legal values are {nearest}."]


def _around(below: int, step: int, least: int) -> str:
    first = max(below, least)
    return f"{first} and {first + step}"
