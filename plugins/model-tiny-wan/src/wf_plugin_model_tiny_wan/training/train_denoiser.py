"""Train the transformer by flow matching on encoded clips."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel

from wf_plugin_model_tiny_wan.training.architecture import CONTEXT_LENGTH, SCHEDULER
from wf_plugin_model_tiny_wan.training.budget import Budget
from wf_plugin_model_tiny_wan.training.latents import LatentSet
from wf_plugin_model_tiny_wan.training.lean_forward import context_bias, lean_forward, rotary_tables
from wf_plugin_model_tiny_wan.training.stepper import Optimiser, train

#: Padded prompt lengths seen in training; the stock default is drawn most often.
CONTEXT_LENGTHS = (CONTEXT_LENGTH,) * 6 + (226, 16)
EMPTY_PROMPTS = 0.1


def sample_sigma(batch: int, device: torch.device) -> torch.Tensor:
    """Draw noise levels ``[B]`` in (0, 1): half logit-normal, half uniform, then shifted like the sampler's."""
    normal = torch.randn(batch, device=device).sigmoid()
    uniform = torch.rand(batch, device=device)
    u = torch.where(torch.rand(batch, device=device) < 0.5, normal, uniform)
    shift = SCHEDULER["flow_shift"]
    return shift * u / (1 + (shift - 1) * u)


def train_denoiser(
    transformer: WanTransformer3DModel,
    data: LatentSet,
    embeddings: torch.Tensor,
    budget: Budget,
    *,
    learning_rate: float = 1.5e-3,
    batch: int = 192,
    on_report: Callable[[WanTransformer3DModel, int], None] | None = None,
) -> WanTransformer3DModel:
    """Train on standardised latents and return the averaged weights, in evaluation mode.

    Args:
        transformer: fp32, on the device of ``data``.
        embeddings: ``[281, N, 64]``, the 280 prompts in the order of ``clips.all_prompts`` and the empty one.
        on_report: called with the averaged transformer and the step number now and then.
    """
    device = data.latents.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    embeddings = embeddings.to(device)
    lengths = torch.tensor(CONTEXT_LENGTHS, device=device)
    rope = rotary_tables(transformer, data.latents[:1])
    optimiser = Optimiser(transformer.train(), learning_rate, ema=0.999)

    def step() -> torch.Tensor:
        rows = torch.randint(len(data.latents), (batch,), device=device)
        clean = data.latents[rows].float()
        empty = torch.rand(batch, device=device) < EMPTY_PROMPTS
        context = embeddings[torch.where(empty, len(embeddings) - 1, data.prompt[rows])]
        bias = context_bias(lengths[torch.randint(len(lengths), (batch,), device=device)])
        sigma = sample_sigma(batch, device)
        noise = torch.randn_like(clean)
        level = sigma.view(-1, 1, 1, 1, 1)
        noisy = torch.lerp(clean, noise, level)
        flow = lean_forward(transformer, noisy, 1000 * sigma, context, bias, rope, dtype)
        loss = F.mse_loss(flow, noise - clean)
        optimiser.step(loss)
        return loss.detach()

    train(
        "denoiser",
        step,
        optimiser,
        budget,
        every=500,
        on_report=on_report and (lambda count: on_report(optimiser.averaged, count)),
    )
    return optimiser.averaged.eval()
