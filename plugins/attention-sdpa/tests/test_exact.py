"""``sdpa`` is the stock computation: bit for bit what diffusers' default backend gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.attention_dispatch import dispatch_attention_fn

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("size", [12, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_to_the_default_dispatch(dtype, size, masked, provider, inputs):
    q, k, v = inputs(size=size, dtype=dtype)
    mask = torch.ones(2, 1, 1, 17, dtype=torch.bool) if masked else None
    if mask is not None:
        mask[1, ..., 9:] = False
    ours = provider("sdpa").attend(q, k, v, mask)
    stock = dispatch_attention_fn(q, k, v, attn_mask=mask)
    assert torch.equal(ours, stock)
    assert ours.stride() == stock.stride()


def test_the_kernel_behind_the_default_is_the_one_noted(provider, inputs):
    """On the CPU the public function is the flash operator, so calling that gives the same bits."""
    q, k, v = inputs()
    sdpa, flash = provider("sdpa"), provider("torch-flash")
    assert torch.equal(sdpa.attend(q, k, v, None), flash.attend(q, k, v, None))
    assert sdpa.evidence()["operators"] == {"sdpa:flash": 1}


def test_gradients_pass_through(provider, inputs):
    q, k, v = (x.requires_grad_() for x in inputs(size=12))
    provider("sdpa").attend(q, k, v, None).sum().backward()
    ours = q.grad.clone()
    q.grad = None
    F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).sum().backward()
    assert torch.equal(ours, q.grad)
