"""Does a clip show what its prompt asks for? Colour, direction and digit, read from the pixels by torch alone.

Colour is the mean RGB of the digit's bright pixels, direction the motion of the brightness centroid, and the
digit is read by the convolutional reader on crops around the centroid, averaged over the frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from wf_plugin_model_tiny_wan.clips import (
    BACKGROUND,
    DIGIT_EXTENT,
    PALETTE,
    SPEED,
    STEPS,
    can_parse,
    parse_prompt,
)
from wf_plugin_model_tiny_wan.reader import DigitReader, load_reader

CROP_SIZE = 32
#: Edge of the crop as a part of the frame's edge: the digit and some room, as its centroid is not its middle.
CROP_EXTENT = DIGIT_EXTENT * 1.125
#: A clip whose brightest pixel lies under this shows nothing.
VISIBLE = 0.3


@dataclass(frozen=True)
class Reading:
    """What B clips show; -1 where nothing can be read.

    Attributes:
        colour, digit, direction: ``[B]`` int64 indices into ``COLOURS``, ``DIGITS``, ``DIRECTIONS``.
        digit_confidence: ``[B]`` float in [0, 1], the reader's mean probability of the digit it names.
    """

    colour: torch.Tensor
    digit: torch.Tensor
    direction: torch.Tensor
    digit_confidence: torch.Tensor


@dataclass(frozen=True)
class Scores:
    """Which of B clips show the colour, digit and direction of their prompts: three ``[B]`` bool tensors."""

    colour: torch.Tensor
    digit: torch.Tensor
    direction: torch.Tensor

    @property
    def all_right(self) -> torch.Tensor:
        """``[B]`` bool: everything the prompt asks for is there."""
        return self.colour & self.digit & self.direction

    def means(self) -> dict[str, float]:
        """Return the share of clips that are right, by kind and for all three kinds together."""
        kinds = {
            "colour": self.colour,
            "direction": self.direction,
            "digit": self.digit,
            "all": self.all_right,
        }
        return {kind: hits.float().mean().item() for kind, hits in kinds.items()}


def brightness(video: torch.Tensor) -> torch.Tensor:
    """Return the largest colour channel above the background, ``[B, F, H, W]``, of video ``[B, F, H, W, 3]``."""
    return ((video.float().amax(-1) - BACKGROUND) / (1 - BACKGROUND)).clamp(0, 1)


def centroids(bright: torch.Tensor) -> torch.Tensor:
    """Return the centre (x, y) of each frame's bright pixels, ``[B, F, 2]`` in parts of the frame's edge."""
    height, width = bright.shape[-2:]
    weight = (bright - 0.3 * bright.amax((-2, -1), keepdim=True)).clamp(min=0)
    mass = weight.sum((-2, -1)).clamp(min=1e-6)
    x = (torch.arange(width, device=bright.device) + 0.5) / width
    y = (torch.arange(height, device=bright.device) + 0.5) / height
    return torch.stack(((weight.sum(-2) * x).sum(-1) / mass, (weight.sum(-1) * y).sum(-1) / mass), dim=-1)


def digit_crops(bright: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """Cut a window around the centroid out of every frame and stretch its brightness to [0, 1].

    Args:
        bright: ``[B, F, H, W]`` in [0, 1].
        centre: ``[B, F, 2]`` as from ``centroids``.

    Returns:
        ``[B * F, 1, 32, 32]``, the input of ``DigitReader``.
    """
    frames = bright.flatten(0, 1)[:, None]
    if frames.shape[-1] >= 128:
        frames = F.avg_pool2d(frames, 2)
    offset = (torch.arange(CROP_SIZE, device=bright.device) + 0.5) / CROP_SIZE - 0.5
    at = centre.flatten(0, 1)[:, :, None] + CROP_EXTENT * offset  # [B*F, 2, 32]
    at = at * 2 - 1
    grid = torch.stack(
        (
            at[:, 0, None, :].expand(-1, CROP_SIZE, -1),
            at[:, 1, :, None].expand(-1, -1, CROP_SIZE),
        ),
        dim=-1,
    )
    crops = F.grid_sample(frames, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return crops / crops.amax((-2, -1), keepdim=True).clamp(min=VISIBLE)


def read_colour(video: torch.Tensor, bright: torch.Tensor) -> torch.Tensor:
    """Return the palette's nearest colour, ``[B]``, by the mean RGB of the pixels above half brightness."""
    mask = (bright > 0.6 * bright.amax((1, 2, 3), keepdim=True)).unsqueeze(-1)
    mean = (video.float() * mask).sum((1, 2, 3)) / mask.sum((1, 2, 3)).clamp(min=1)
    palette = torch.tensor(PALETTE, device=video.device)
    palette = palette / palette.amax(-1, keepdim=True)
    return torch.cdist(mean / mean.amax(-1, keepdim=True).clamp(min=1e-6), palette).argmin(1)


def read_direction(centre: torch.Tensor) -> torch.Tensor:
    """Return the direction, ``[B]``, of the centroid's motion from the first to the last quarter of the clip.

    Motion under a quarter of what the data shows reads as no direction, -1.
    """
    num_frames = centre.shape[1]
    quarter = max(num_frames // 4, 1)
    motion = centre[:, -quarter:].mean(1) - centre[:, :quarter].mean(1)
    along = motion @ torch.tensor(STEPS, device=centre.device).T
    best, direction = along.max(1)
    expected = SPEED * (num_frames - quarter)
    return torch.where(best >= expected / 4, direction, -1)


@torch.no_grad()
def read_clips(video: torch.Tensor, reader: DigitReader | None = None) -> Reading:
    """Read colour, digit and direction off clips.

    Args:
        video: ``[B, F, H, W, 3]`` float in [0, 1] with square frames (``output_type="pt"`` of a pipeline
            gives ``[B, F, 3, H, W]``: permute it; ``"np"`` fits as it is).
        reader: a digit reader on the video's device, by default the shipped one.
    """
    if video.ndim != 5 or video.shape[-1] != 3:
        raise ValueError(f"read_clips needs video [B, F, H, W, 3], got {list(video.shape)}")
    reader = reader or load_reader(device=video.device)
    bright = brightness(video)
    centre = centroids(bright)
    crops = digit_crops(bright, centre)
    probability = reader(crops).log_softmax(-1).view(*centre.shape[:2], -1).mean(1).softmax(-1)
    confidence, digit = probability.max(-1)
    visible = bright.amax((1, 2, 3)) >= VISIBLE

    def seen(index: torch.Tensor) -> torch.Tensor:
        return torch.where(visible, index, -1)

    return Reading(seen(read_colour(video, bright)), seen(digit), seen(read_direction(centre)), confidence)


def score_clips(video: torch.Tensor, prompts: Sequence[str], reader: DigitReader | None = None) -> Scores:
    """Compare clips with their prompts.

    Args:
        video: ``[B, F, H, W, 3]`` float in [0, 1].
        prompts: B prompts, each naming one colour, one digit and one direction.
        reader: as in ``read_clips``.

    Raises:
        ValueError: if the counts differ or a prompt cannot be parsed.
    """
    if len(prompts) != len(video):
        raise ValueError(f"score_clips got {len(video)} clips and {len(prompts)} prompts; give one per clip")
    asked = torch.tensor([parse_prompt(text) for text in prompts], device=video.device)
    reading = read_clips(video, reader)
    return Scores(
        reading.colour == asked[:, 0], reading.digit == asked[:, 1], reading.direction == asked[:, 2]
    )


def judge_clips(prompts: Sequence[str], video: torch.Tensor) -> list[dict[str, bool] | None]:
    """Return what each clip shows of its prompt, by kind; None for a prompt that ``parse_prompt`` does not know.

    Args:
        prompts: B prompts.
        video: ``[B, F, H, W, 3]`` float in [0, 1]. Frames that are not square are never judged.
    """
    known = (
        [at for at, text in enumerate(prompts) if can_parse(text)] if video.shape[2] == video.shape[3] else []
    )
    judged: list[dict[str, bool] | None] = [None] * len(prompts)
    if known:
        scores = score_clips(video[known], [prompts[at] for at in known])
        for row, at in enumerate(known):
            judged[at] = {kind: bool(getattr(scores, kind)[row]) for kind in ("colour", "direction", "digit")}
    return judged
