"""Encoding clips once: the denoiser's data set, and the latent statistics that the pipeline needs."""

from dataclasses import dataclass

import torch
from diffusers import AutoencoderKLWan

from wf_plugin_model_tiny_wan import clips


@dataclass(frozen=True)
class LatentSet:
    """M encoded clips.

    Attributes:
        latents: ``[M, 16, 5, 16, 16]`` bfloat16, each channel with mean 0 and standard deviation 1.
        prompt: ``[M]`` int64, index into ``clips.all_prompts()``.
        mean, std: ``[16]`` float32, the statistics of the raw latents.
    """

    latents: torch.Tensor
    prompt: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor


@torch.no_grad()
def encode_clips(
    vae: AutoencoderKLWan, images: torch.Tensor, labels: torch.Tensor, count: int, *, batch: int = 64
) -> LatentSet:
    """Render and encode ``count`` random clips (the posterior's mean), on the device of ``images``."""
    device = images.device
    generator = torch.Generator(device).manual_seed(2)
    parts, prompts = [], []
    for begin in range(0, count, batch):
        size = min(batch, count - begin)
        described = clips.sample_clips(images, labels, size, generator)
        video = clips.render(described) * 2 - 1
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            parts.append(vae.encode(video).latent_dist.mean.to(torch.bfloat16))
        prompts.append(described.digit * 28 + described.colour * 4 + described.direction)
    raw = torch.cat(parts)
    dims = (0, 2, 3, 4)
    mean = raw.mean(dims, dtype=torch.float32)
    std = torch.stack([raw[:, channel].float().std() for channel in range(raw.shape[1])])
    shape = (1, -1, 1, 1, 1)
    for part in raw.split(1024):
        part.copy_((part.float() - mean.view(shape)) / std.view(shape))
    return LatentSet(raw, torch.cat(prompts), mean, std)
