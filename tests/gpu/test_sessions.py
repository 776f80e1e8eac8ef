"""Sessions on a CUDA device: identity, attention backends, isolation, VAE decoding."""

from __future__ import annotations

import gc
import math
import threading

import pytest
import torch

from support import models

pytestmark = pytest.mark.gpu
BACKENDS = ["sdpa", "cudnn", "efficient", "math", "torch_flash", "flex"]


def on_cuda(pipe, dtype=torch.bfloat16):
    models.to(pipe, dtype)
    return pipe.to("cuda")


def there(arguments):
    """The call's embeddings on the device."""
    return {key: value.cuda() if key.endswith("embeds") else value for key, value in arguments.items()}


def wide(dtype=torch.bfloat16):
    """P1 with heads of 64, which every kernel serves, and enough tokens to leave one tile."""
    pipe = models.p1(scheduler=models.unipc(), num_attention_heads=2, attention_head_dim=64)
    arguments = models.cast(models.call(height=128, width=128, num_frames=17), dtype)
    return on_cuda(pipe, dtype), there(arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", models.RECIPES)
def test_an_empty_session_is_bit_identical(host, recipe, dtype):
    pipe, arguments = models.RECIPES[recipe](dtype)
    pipe.to("cuda")
    if recipe == "i2v":
        tokens = pipe.encode_image(None).cuda()
        pipe.encode_image = lambda image, device=None: tokens
    arguments = there({**arguments, "output_type": "latent"})
    stock = pipe(**models.fresh(arguments)).frames
    with host.session(pipe, {}, verify_contents=True) as session:
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, stock)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_runs_its_own_kernel_within_tolerance(host, backend):
    pipe, arguments = wide()
    stock = pipe(**models.fresh(arguments)).frames.float()
    with host.session(pipe, {"attention_backend": backend}, verify_contents=True) as session:
        ours = session.pipe(**models.fresh(arguments)).frames.float()
        (claim,) = session.report["effective"].values()
    assert claim["state"] == "effective"
    assert claim["evidence"]["attempts"] == claim["evidence"]["successes"] == 4 * 2 * 3 * 2
    error = float((ours - stock).norm() / stock.norm())
    assert error <= (0.0 if backend == "sdpa" else 2e-2), error
    print(backend, error, claim["evidence"])


def test_two_threads_with_different_backends_each_run_their_own(host):
    pipe, arguments = wide()
    stock = pipe(**models.fresh(arguments)).frames

    def solo(request):
        with host.session(pipe, request) as session:
            return session.pipe(**models.fresh(arguments)).frames, session.report

    requests = [{"attention_backend": "math"}, {"attention_backend": "cudnn"}, {}]
    alone = [solo(request) for request in requests]
    results = [None] * len(requests)

    def work(index):
        results[index] = solo(requests[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (frames, report), (expected, expected_report) in zip(results, alone, strict=True):
        assert torch.equal(frames, expected)
        assert report["effective"] == expected_report["effective"]
    assert torch.equal(results[2][0], stock)


VAE_REQUESTS = {
    "chunk": {"vae_temporal_chunk_size": 2},
    "channels-last": {"vae_channels_last_3d": True},
    "autocast": {"vae_decode_autocast": "bf16"},
    "tiling": {"vae_spatial_tiling": True, "vae_tile_size": [12, 12], "vae_tile_stride": [8, 8]},
}


@pytest.mark.parametrize("name", VAE_REQUESTS)
def test_vae_decoding(host, name):
    pipe = models.p1(scheduler=models.unipc()).to("cuda")
    arguments = there(models.call(height=128, width=128, num_frames=17, output_type="pt"))
    stock = pipe(**models.fresh(arguments)).frames
    with host.session(pipe, VAE_REQUESTS[name], verify_contents=True) as session:
        ours = session.pipe(**models.fresh(arguments)).frames
        (claim,) = session.report["effective"].values()
    assert claim["state"] == "effective", claim
    least = {"chunk": 60.0, "channels-last": 60.0, "autocast": 40.0, "tiling": 20.0}[name]
    error = float((ours - stock).double().square().mean())
    psnr = -10 * math.log10(error) if error else math.inf
    assert psnr >= least, psnr
    print(name, psnr, float((ours - stock).abs().max()))


def test_nothing_of_a_session_stays_on_the_device(host):
    pipe, arguments = wide()
    request = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0}}
    for _ in range(2):
        with host.session(pipe, request) as session:
            session.pipe(**models.fresh(arguments))
            assert session.held_bytes() == 0
    gc.collect()  # what other tests left must not be counted as given back
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        with host.session(pipe, request) as session:
            session.pipe(**models.fresh(arguments))
    gc.collect()
    assert torch.cuda.memory_allocated() == before
