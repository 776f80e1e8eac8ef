"""xformers on a card, against float64 on the same inputs."""

from __future__ import annotations

import pytest
import torch

from wf_core.api import Ineligible
from wf_plugin_attention_xformers.provider import Xformers

# Warnings of the packages themselves are theirs.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
LENGTHS = [(1024, 1024), (4096, 4096), (4096, 512), (1001, 1001), (777, 77)]


def opened(size=128, dtype=torch.bfloat16):
    """A provider that has passed its probing call on this card; the test is skipped with the reason of a refusal."""
    provider = Xformers(size, dtype)
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
def test_error(dtype, lengths, inputs, reference, relative_error):
    q, k, v = inputs(*lengths, size=128, dtype=dtype, device="cuda")
    check(opened(dtype=dtype), q, k, v, None, reference, relative_error, TOLERANCE[dtype])


@pytest.mark.parametrize("key_heads", [8, 2])
@pytest.mark.parametrize("shape", [(2, 1, 1, 300), (513, 300), (2, 8, 513, 300)], ids=str)
def test_masks_with_an_empty_row(shape, key_heads, inputs, reference, relative_error):
    q, k, v = inputs(513, 300, heads=8, key_heads=key_heads, dtype=torch.bfloat16, device="cuda")
    mask = (torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4).cuda()
    mask[0] = False
    check(opened(64), q, k, v, mask, reference, relative_error, 1e-2)


@pytest.mark.parametrize("size", [12, 64, 256])
def test_grouped_heads_and_head_sizes(size, inputs, reference, relative_error):
    q, k, v = inputs(1024, 512, heads=8, key_heads=2, size=size, dtype=torch.bfloat16, device="cuda")
    check(opened(size), q, k, v, None, reference, relative_error, 1e-2)
