"""FlashAttention 2, 3 and 4 on a card, against float64 on the same inputs."""

from __future__ import annotations

import pytest
import torch

from wf_core.api import Ineligible
from wf_plugin_attention_flash.providers import PROVIDERS

# Warnings of the packages themselves are theirs.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
LENGTHS = [(1024, 1024), (4096, 4096), (4096, 512), (1001, 1001), (777, 77)]


def opened(name, size=128, dtype=torch.bfloat16):
    """A provider that has passed its probing call on this card; the test is skipped with the reason of a refusal."""
    provider = PROVIDERS[name](size, dtype)
    try:
        provider.prepare({"transformer": torch.nn.Linear(2, 2, device="cuda")})
    except Ineligible as why:
        pytest.skip(str(why))
    return provider


def check(provider, q, k, v, mask, reference, relative_error, most):
    with torch.no_grad():
        out = provider.attend(q, k, v, mask)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert out.isfinite().all()
    error = relative_error(out, reference(q, k, v, mask))
    assert error <= most, f"relative L2 error {error:.3g} with {provider.evidence()['package']}"


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", PROVIDERS)
def test_error(name, dtype, lengths, inputs, reference, relative_error):
    q, k, v = inputs(*lengths, size=128, dtype=dtype, device="cuda")
    check(opened(name, dtype=dtype), q, k, v, None, reference, relative_error, TOLERANCE[dtype])


@pytest.mark.parametrize("size", [64, 96, 256])
@pytest.mark.parametrize("name", PROVIDERS)
def test_head_sizes(name, size, inputs, reference, relative_error):
    q, k, v = inputs(1024, 512, size=size, dtype=torch.bfloat16, device="cuda")
    check(opened(name, size), q, k, v, None, reference, relative_error, 1e-2)


@pytest.mark.parametrize("name", PROVIDERS)
def test_grouped_heads(name, inputs, reference, relative_error):
    q, k, v = inputs(1024, 1024, heads=8, key_heads=2, size=128, dtype=torch.bfloat16, device="cuda")
    check(opened(name), q, k, v, None, reference, relative_error, 1e-2)


@pytest.mark.parametrize("first", [0, 1], ids=["aligned", "misaligned"])
@pytest.mark.parametrize("name", PROVIDERS)
def test_views_of_one_fused_projection(name, first, reference, relative_error):
    fused = torch.randn(2, 1024, 3 * 4 * 128 + 1, device="cuda", dtype=torch.bfloat16)
    fused = fused[..., first : first + 3 * 4 * 128]
    q, k, v = (x.unflatten(-1, (4, 128)) for x in fused.chunk(3, dim=-1))
    check(opened(name), q, k, v, None, reference, relative_error, 1e-2)
