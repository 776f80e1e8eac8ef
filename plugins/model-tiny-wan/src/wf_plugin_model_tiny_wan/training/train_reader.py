"""Train the digit reader on frames cut out exactly as ``score`` cuts them, with blur, noise and distortion."""

import torch
import torch.nn.functional as F

from wf_plugin_model_tiny_wan import clips, score
from wf_plugin_model_tiny_wan.reader import DigitReader


def distort(glyphs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rotate, shear, scale and shift handwriting ``[B, 8, 8]`` a little and at random."""
    batch, device = len(glyphs), glyphs.device
    noise = torch.randn(batch, 2, 3, device=device, generator=generator)
    affine = torch.eye(2, 3, device=device) + noise * torch.tensor([0.08, 0.08, 0.04], device=device)
    grid = F.affine_grid(affine, [batch, 1, 8, 8], align_corners=False)
    return F.grid_sample(glyphs[:, None], grid, mode="bicubic", align_corners=False).squeeze(1).clamp(0, 1)


def degrade(crops: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Blur half of the crops ``[B, 1, 32, 32]``, change their contrast, add noise."""
    batch, device = len(crops), crops.device

    def uniform() -> torch.Tensor:
        return torch.rand(batch, 1, 1, 1, device=device, generator=generator)

    blurred = F.avg_pool2d(crops, 3, stride=1, padding=1)
    crops = torch.lerp(crops, blurred, (2 * uniform() - 1).clamp(min=0))
    crops = crops.clamp(1e-4, 1) ** (0.6 + 0.8 * uniform())
    noise = torch.randn(crops.shape, device=device, generator=generator)
    return (crops + 0.06 * uniform() * noise).clamp(0, 1)


def frame_crops(
    images: torch.Tensor, labels: torch.Tensor, count: int, generator: torch.Generator, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Render one frame for each of ``count`` random clips; return crops ``[count, 1, 32, 32]`` and digits."""
    batch = clips.sample_clips(images, labels, count, generator)
    video = clips.render(batch, num_frames=1, size=size).permute(0, 2, 3, 4, 1)
    bright = score.brightness(video)
    return score.digit_crops(bright, score.centroids(bright)), batch.digit


@torch.no_grad()
def accuracy(
    reader: DigitReader, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
) -> float:
    """Return the share of 2000 clean rendered frames that the reader reads right."""
    crops, digits = frame_crops(images, labels, 2000, generator, 64)
    return (reader(crops).argmax(-1) == digits).float().mean().item()


def train_reader(steps: int, device: torch.device | str, seed: int = 0) -> tuple[DigitReader, float]:
    """Train on the handwriting that is not held out.

    Returns:
        The reader in evaluation mode and its accuracy on frames with held-out handwriting.
    """
    torch.manual_seed(seed)
    generator = torch.Generator(device).manual_seed(seed)
    images, labels = (t.to(device) for t in clips.load_handwriting())
    seen, held_out = (index.to(device) for index in clips.split_handwriting(labels.cpu()))
    reader = DigitReader().to(device).train()
    adam = torch.optim.AdamW(reader.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, total_steps=max(steps, 10))
    for _ in range(steps):
        crops, digits = frame_crops(distort(images[seen], generator), labels[seen], 128, generator, 64)
        loss = F.cross_entropy(reader(degrade(crops, generator)), digits, label_smoothing=0.05)
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
    reader.eval()
    right = accuracy(reader, images[held_out], labels[held_out], generator)
    print(f"reader: {steps} steps, {right:.3f} right on held-out handwriting", flush=True)
    return reader, right
