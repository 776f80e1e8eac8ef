"""The data: handwritten digits in seven colours, gliding over a dark background in four directions.

Everything is drawn by torch on any device; only the 8x8 handwriting itself comes from scikit-learn
(``load_digits``, 1797 samples, no download). A clip is described by five small tensors (``ClipBatch``), so a
data set is a few integers per clip and its pixels are rendered when they are needed.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

DIGITS = tuple("0123456789")
COLOURS = ("red", "green", "blue", "yellow", "cyan", "magenta", "white")
DIRECTIONS = ("left", "right", "up", "down")

#: RGB in [0, 1], in the order of ``COLOURS``.
PALETTE = (
    (0.95, 0.15, 0.12),
    (0.15, 0.85, 0.20),
    (0.20, 0.35, 1.00),
    (0.95, 0.90, 0.15),
    (0.10, 0.85, 0.90),
    (0.90, 0.20, 0.85),
    (0.95, 0.95, 0.95),
)
#: Unit steps (x, y) in the order of ``DIRECTIONS``; y grows downwards, as in images.
STEPS = ((-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))

NUM_FRAMES = 17
FRAME_SIZE = 128
#: Edge of a digit and distance travelled between two frames, both as parts of the frame's edge.
DIGIT_EXTENT = 0.5
SPEED = 2.0 / 128
#: A digit starts on a square grid with this spacing, again a part of the frame's edge.
START_GRID = 4.0 / 128
BACKGROUND = 0.05

#: The word list of the prompts; a word's place is its token id.
VOCABULARY = (
    "<pad> </s> <unk> a the digit number moving to one on dark background , . "
    "red green blue yellow cyan magenta white left right up down 0 1 2 3 4 5 6 7 8 9"
).split()


def prompt(colour: str, digit: str, direction: str) -> str:
    """Return the prompt of one clip, for example ``a red 3 moving left``."""
    return f"a {colour} {digit} moving {direction}"


def all_prompts() -> list[str]:
    """Return the 280 prompts: 10 digits x 7 colours x 4 directions, digits slowest."""
    return [prompt(c, d, m) for d, c, m in itertools.product(DIGITS, COLOURS, DIRECTIONS)]


def parse_prompt(text: str) -> tuple[int, int, int]:
    """Return (colour, digit, direction) as indices into ``COLOURS``, ``DIGITS`` and ``DIRECTIONS``.

    Raises:
        ValueError: if the prompt does not name exactly one of each.
    """
    words = text.lower().replace(",", " ").replace(".", " ").split()
    found = []
    for kind, names in (("colour", COLOURS), ("digit", DIGITS), ("direction", DIRECTIONS)):
        hits = [names.index(word) for word in words if word in names]
        if len(hits) != 1:
            raise ValueError(f"prompt {text!r} names {len(hits)} {kind}s, need one of {', '.join(names)}")
        found.append(hits[0])
    return found[0], found[1], found[2]


def can_parse(text: str) -> bool:
    """Return whether ``parse_prompt`` understands the text."""
    try:
        parse_prompt(text)
    except ValueError:
        return False
    return True


def load_handwriting() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scikit-learn's digits: images ``[1797, 8, 8]`` float32 in [0, 1] and labels ``[1797]`` int64."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return torch.tensor(bunch.images, dtype=torch.float32) / 16, torch.tensor(bunch.target, dtype=torch.long)


def split_handwriting(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices of the samples to train on and of the held-out ones (every fifth)."""
    held_out = torch.arange(len(labels)) % 5 == 0
    return torch.nonzero(~held_out).squeeze(1), torch.nonzero(held_out).squeeze(1)


def load_styles(path: Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the handwriting the shipped denoiser was trained on; needs no scikit-learn.

    Args:
        path: a file as ``training.build`` writes it, by default the one in this package.

    Returns:
        Images ``[10 * S, 8, 8]`` float32 in [0, 1] and labels ``[10 * S]`` int64.
    """
    glyphs = load_file(path or Path(__file__).with_name("styles.safetensors"))["glyphs"]
    per_digit = glyphs.shape[1]
    return glyphs.flatten(0, 1).float() / 16, torch.arange(10).repeat_interleave(per_digit)


def choose_styles(images: torch.Tensor, labels: torch.Tensor, per_digit: int) -> torch.Tensor:
    """Choose ``per_digit`` legible and mutually different samples of every digit, without randomness.

    A sample is legible if it is much nearer to the mean of its own class than to any other class mean; the
    most legible quarter competes, and farthest-point selection spreads the choice over it.

    Args:
        images: ``[N, 8, 8]`` float in [0, 1].
        labels: ``[N]`` int64, 0 to 9.

    Returns:
        Indices into ``images``, ``[10, per_digit]`` int64.
    """
    flat = images.flatten(1)
    means = torch.stack([flat[labels == d].mean(0) for d in range(10)])
    distance = torch.cdist(flat, means)
    own = distance.gather(1, labels[:, None]).squeeze(1)
    other = distance.scatter(1, labels[:, None], torch.inf).amin(1)
    margin = other - own
    chosen = []
    for digit in range(10):
        members = torch.nonzero(labels == digit).squeeze(1)
        quarter = members[margin[members].argsort(descending=True)[: len(members) // 4]]
        picks = [quarter[0]]
        while len(picks) < per_digit:
            gap = torch.cdist(flat[quarter], flat[torch.stack(picks)]).amin(1)
            picks.append(quarter[gap.argmax()])
        chosen.append(torch.stack(picks))
    return torch.stack(chosen)


@dataclass(frozen=True)
class ClipBatch:
    """What a batch of B clips shows, one entry per clip, all on one device.

    Attributes:
        glyph: handwriting ``[B, 8, 8]`` float in [0, 1].
        digit, colour, direction: ``[B]`` int64 indices into ``DIGITS``, ``COLOURS``, ``DIRECTIONS``.
        start: ``[B, 2]`` float, centre (x, y) of the digit in the first frame, as parts of the frame's edge.
    """

    glyph: torch.Tensor
    digit: torch.Tensor
    colour: torch.Tensor
    direction: torch.Tensor
    start: torch.Tensor

    def __len__(self) -> int:
        return len(self.digit)

    def prompts(self) -> list[str]:
        """Return the prompt of every clip."""
        rows = zip(self.colour.tolist(), self.digit.tolist(), self.direction.tolist(), strict=True)
        return [prompt(COLOURS[c], DIGITS[d], DIRECTIONS[m]) for c, d, m in rows]

    def __getitem__(self, index: slice | torch.Tensor) -> "ClipBatch":
        return ClipBatch(
            *(getattr(self, name)[index] for name in ("glyph", "digit", "colour", "direction", "start"))
        )


def sample_clips(
    images: torch.Tensor,
    labels: torch.Tensor,
    count: int,
    generator: torch.Generator,
    *,
    num_frames: int = NUM_FRAMES,
    balanced: bool = False,
) -> ClipBatch:
    """Draw ``count`` clips from the given handwriting.

    A clip starts on a point of the grid from which the digit stays inside the frame. ``balanced`` walks through digits,
    colours and directions in the order of ``all_prompts`` instead of drawing them.

    Args:
        images: ``[N, 8, 8]`` float in [0, 1], on the device of ``generator``.
        labels: ``[N]`` int64.
    """
    device = generator.device

    def draw(high: int) -> torch.Tensor:
        return torch.randint(high, (count,), device=device, generator=generator)

    if balanced:
        place = torch.arange(count, device=device)
        digit, colour, direction = place // 28 % 10, place // 4 % 7, place % 4
    else:
        digit, colour, direction = draw(10), draw(7), draw(4)
    same = labels[None, :] == digit[:, None]
    glyph = images[torch.multinomial(same.float(), 1, generator=generator).squeeze(1)]

    step = torch.tensor(STEPS, device=device)[direction]
    travel = SPEED * (num_frames - 1)
    slack = 1 - DIGIT_EXTENT - travel * step.abs()
    places = torch.floor(slack / START_GRID + 1e-4) + 1
    corner = torch.floor(torch.rand(count, 2, device=device, generator=generator) * places) * START_GRID
    start = corner + DIGIT_EXTENT / 2 + travel * step.clamp(max=0).abs()
    return ClipBatch(glyph, digit, colour, direction, start)


def render(clips: ClipBatch, *, num_frames: int = NUM_FRAMES, size: int = FRAME_SIZE) -> torch.Tensor:
    """Draw clips.

    Args:
        clips: B descriptions.
        num_frames: frames F per clip.
        size: edge of the square frames in pixels.

    Returns:
        ``[B, 3, F, size, size]`` float32 in [0, 1], on the device of ``clips``.
    """
    device, batch = clips.glyph.device, len(clips)
    # The handwriting is enlarged once, smoothly, with an empty rim that every outside sample falls into.
    glyph = F.pad(clips.glyph[:, None], (1, 1, 1, 1))
    glyph = F.interpolate(glyph, size=(80, 80), mode="bicubic", align_corners=False).clamp(0, 1)

    step = torch.tensor(STEPS, device=device)[clips.direction]
    time = torch.arange(num_frames, device=device, dtype=torch.float32)
    centre = clips.start[:, None] + SPEED * step[:, None] * time[:, None]  # [B, F, 2]
    pixel = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) / size
    # Offsets from the centre in units in which the 8x8 handwriting spans [-1, 1] and its rim 1.25.
    scale = 2 / DIGIT_EXTENT / 1.25
    x = ((pixel - centre[..., 0:1]) * scale)[:, :, None, :].expand(-1, -1, size, -1)
    y = ((pixel - centre[..., 1:2]) * scale)[:, :, :, None].expand(-1, -1, -1, size)
    grid = torch.stack((x, y), dim=-1).flatten(0, 1)
    frames = glyph[:, None].expand(-1, num_frames, -1, -1, -1).flatten(0, 1)
    mask = F.grid_sample(frames, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    mask = mask.view(batch, 1, num_frames, size, size)
    colour = torch.tensor(PALETTE, device=device)[clips.colour].view(batch, 3, 1, 1, 1)
    return BACKGROUND + (colour - BACKGROUND) * mask
