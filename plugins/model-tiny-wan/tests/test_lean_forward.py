"""The training forward pass computes what the stock transformer computes on the stock padded context."""

import pytest
import torch

from wf_plugin_model_tiny_wan.training.architecture import make_transformer
from wf_plugin_model_tiny_wan.training.lean_forward import context_bias, lean_forward, rotary_tables


@pytest.mark.parametrize("length", [16, 512])
def test_the_shortened_context_acts_like_the_padded_one(length: int) -> None:
    torch.manual_seed(0)
    transformer = make_transformer()
    latents = torch.randn(2, 16, 2, 4, 4)
    timestep = torch.tensor([100.0, 900.0])
    text = torch.randn(2, 6, 64)
    text[1, 1:] = 0  # the empty prompt: one token
    padded = torch.zeros(2, length, 64)
    padded[:, :6] = text
    bias = context_bias(torch.full((2,), length))
    rope = rotary_tables(transformer, latents)
    with torch.no_grad():
        stock = transformer(latents, timestep, padded, return_dict=False)[0]
        lean = lean_forward(transformer, latents, timestep, padded[:, :8], bias, rope, torch.float32)
    assert (lean - stock).norm() < 1e-5 * stock.norm()
