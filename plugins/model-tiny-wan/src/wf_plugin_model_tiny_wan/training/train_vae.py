"""Train the autoencoder on 64x64 windows of full-length clips.

Small windows keep a step cheap, full length teaches the causal convolutions what late frames look like; windows
of the 128x128 frames show digits at the size at which they are used.
"""

import torch
from diffusers import AutoencoderKLWan

from wf_plugin_model_tiny_wan import clips
from wf_plugin_model_tiny_wan.training.budget import Budget
from wf_plugin_model_tiny_wan.training.stepper import Optimiser, train

WINDOW = 64


def windows(video: torch.Tensor) -> torch.Tensor:
    """Cut one random window per clip (the same in all frames): ``[B, 3, F, H, W]`` to ``[B, 3, F, 64, 64]``."""
    batch, _, _, height, width = video.shape
    corner = (torch.rand(2, batch, 1, device=video.device) * (height - WINDOW + 1)).long()
    rows, columns = corner + torch.arange(WINDOW, device=video.device)
    video = video.gather(3, rows[:, None, None, :, None].expand(-1, 3, video.shape[2], -1, width))
    return video.gather(4, columns[:, None, None, None, :].expand(-1, 3, video.shape[2], WINDOW, -1))


def reconstruction_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """L1 weighted up on the digit, plus L1 of the chroma and of the spatial gradients; video in [-1, 1]."""
    weight = 1 + 4 * (target.amax(1, keepdim=True) > -0.8).float()
    error = ((output - target).abs() * weight).mean()
    chroma = ((output - output.mean(1, keepdim=True)) - (target - target.mean(1, keepdim=True))).abs().mean()
    gradient = sum((output.diff(dim=d) - target.diff(dim=d)).abs().mean() for d in (-1, -2))
    square = ((output - target) ** 2 * weight).mean()
    return error + chroma + gradient + 4 * square


def train_vae(
    vae: AutoencoderKLWan,
    images: torch.Tensor,
    labels: torch.Tensor,
    budget: Budget,
    *,
    learning_rate: float = 2e-3,
    batch: int = 24,
    pool: int = 2048,
) -> AutoencoderKLWan:
    """Train from handwriting ``[N, 8, 8]`` with its labels; return the averaged weights, in evaluation mode.

    A pool of clips is rendered to bytes before training starts; each step draws clips and windows from it.
    """
    device = images.device
    generator = torch.Generator(device).manual_seed(1)
    chunks = [
        clips.render(clips.sample_clips(images, labels, min(64, pool), generator)).mul(255).round().byte()
        for _ in range(0, pool, 64)
    ]
    data = torch.cat(chunks)
    optimiser = Optimiser(vae.train(), learning_rate, ema=0.99)

    def step() -> torch.Tensor:
        video = windows(data[torch.randint(len(data), (batch,), device=device)]).float() / 127.5 - 1
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
            posterior = vae.encode(video).latent_dist
            mean, std = posterior.mean.float(), posterior.std.float()
            output = vae.decode(mean + std * torch.randn_like(std)).sample.float()
        kl = 0.5 * (mean**2 + std**2 - 1 - 2 * std.clamp(min=1e-6).log()).mean()
        loss = reconstruction_loss(output, video) + 2e-4 * kl
        optimiser.step(loss)
        return loss.detach()

    train("vae", step, optimiser, budget, every=100)
    vae.clear_cache()
    averaged = optimiser.averaged
    averaged.clear_cache()
    return averaged.eval()
