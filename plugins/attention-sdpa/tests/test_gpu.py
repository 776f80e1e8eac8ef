"""The CUDA backends on a card, against float64 on the same 16-bit inputs."""

from __future__ import annotations

import pytest
import torch

from wf_core.api import Ineligible

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
HALF = [torch.bfloat16, torch.float16]


def check(provider, backend, q, k, v, mask, reference, relative_error):
    used = provider(backend)
    with torch.no_grad():
        out = used.attend(q, k, v, mask)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert out.isfinite().all()
    assert relative_error(out, reference(q, k, v, mask)) <= TOLERANCE[q.dtype]
    return used, out


@pytest.mark.parametrize("size", [12, 64, 128])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("backend", ["cudnn", "efficient", "torch-flash", "math", "sdpa"])
def test_dense(backend, dtype, size, provider, inputs, reference, relative_error):
    q, k, v = inputs(lq=384, lk=256, size=size, dtype=dtype, device="cuda")
    check(provider, backend, q, k, v, None, reference, relative_error)


@pytest.mark.parametrize("lengths", [(300, 77), (1, 128), (513, 513)], ids=str)
@pytest.mark.parametrize("backend", ["cudnn", "efficient", "torch-flash", "math", "sdpa"])
def test_lengths_off_the_tile(backend, lengths, provider, inputs, reference, relative_error):
    q, k, v = inputs(lq=lengths[0], lk=lengths[1], size=64, dtype=torch.bfloat16, device="cuda")
    if backend == "cudnn" and any(n % 128 for n in lengths) and torch.backends.cudnn.version() < 91501:
        with pytest.raises(Ineligible, match="multiple of 128"):
            provider(backend).attend(q, k, v, None)
    else:
        check(provider, backend, q, k, v, None, reference, relative_error)


@pytest.mark.parametrize("shape", [(2, 1, 1, 256), (384, 256), (2, 3, 384, 256)], ids=str)
@pytest.mark.parametrize("backend", ["cudnn", "efficient", "math"])
def test_masks_with_an_empty_row(backend, shape, provider, inputs, reference, relative_error):
    q, k, v = inputs(lq=384, lk=256, dtype=torch.bfloat16, device="cuda")
    mask = (torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4).cuda()
    mask[0] = False
    _, out = check(provider, backend, q, k, v, mask, reference, relative_error)
    assert not out[0, 0].any()


@pytest.mark.parametrize("backend", ["cudnn", "efficient", "math"])
def test_a_masked_key_has_no_influence(backend, provider, inputs):
    q, k, v = inputs(lq=384, lk=256, dtype=torch.bfloat16, device="cuda")
    mask = torch.ones(1, 1, 1, 256, dtype=torch.bool, device="cuda")
    mask[..., 100:] = False
    used = provider(backend)
    with torch.no_grad():
        before = used.attend(q, k, v, mask)
        v[:, 100:] = 1e4
        assert torch.equal(before, used.attend(q, k, v, mask))


@pytest.mark.parametrize("backend", ["cudnn", "efficient", "torch-flash", "math"])
def test_strided_views(backend, provider, reference, relative_error):
    fused = torch.randn(2, 256, 3 * 4 * 64 + 1, device="cuda", dtype=torch.bfloat16)[..., 1:]
    q, k, v = (x.unflatten(-1, (4, 64)) for x in fused.chunk(3, dim=-1))
    check(provider, backend, q, k, v, None, reference, relative_error)


@pytest.mark.parametrize("backend", ["cudnn", "efficient", "torch-flash", "math", "sdpa"])
def test_grouped_heads(backend, provider, inputs, reference, relative_error):
    q, k, v = inputs(lq=256, lk=384, heads=8, key_heads=2, dtype=torch.bfloat16, device="cuda")
    check(provider, backend, q, k, v, None, reference, relative_error)


def test_efficient_in_float32(provider, inputs, reference, relative_error):
    q, k, v = inputs(lq=300, lk=77, size=12, device="cuda")
    mask = (torch.rand(2, 1, 1, 77, generator=torch.Generator().manual_seed(3)) > 0.4).cuda()
    check(provider, "efficient", q, k, v, mask, reference, relative_error)


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
def test_flex_compiles(masked, provider, inputs, reference, relative_error):
    q, k, v = inputs(lq=384, lk=256, dtype=torch.bfloat16, device="cuda")
    mask = (
        (torch.rand(2, 1, 1, 256, generator=torch.Generator().manual_seed(3)) > 0.4).cuda()
        if masked
        else None
    )
    used, _ = check(provider, "flex", q, k, v, mask, reference, relative_error)
    assert used.evidence()["around"] == ["compiled"]


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("cudnn", "aten::_scaled_dot_product_cudnn_attention"),
        ("efficient", "aten::_scaled_dot_product_efficient_attention"),
        ("torch-flash", "aten::_scaled_dot_product_flash_attention"),
    ],
)
def test_the_operator_asked_for_is_the_one_that_runs(backend, name, provider, inputs):
    from torch.profiler import ProfilerActivity, profile

    q, k, v = inputs(lq=384, lk=256, dtype=torch.bfloat16, device="cuda")
    used = provider(backend)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as seen:
        used.attend(q, k, v, None)
    ran = {event.key for event in seen.key_averages() if event.key.startswith("aten::_scaled_dot_product")}
    assert ran == {name}
