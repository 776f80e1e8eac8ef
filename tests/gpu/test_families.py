"""HunyuanVideo and Cosmos on a CUDA device: the stock's bits, as exact as stock, all in effect, and no large masks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from family_denoisers import FAMILY_DENOISERS, HUNYUAN15_720P, build_family, call_family
from family_forwards import accepted, compare, errors, relative
from mask_memory import mask_memory, of_forward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE, FEW = "cuda", 2


@pytest.fixture(scope="module", params=FAMILY_DENOISERS)
def case(request, host):
    """A denoiser of published width with two blocks of each kind, its short clip, and the exact stack for it."""
    denoiser = FAMILY_DENOISERS[request.param].shortened(FEW)
    model = build_family(denoiser, DEVICE)
    return model, call_family(denoiser, denoiser.short, DEVICE), accepted(host, model)[0]


@torch.no_grad()
def test_no_further_from_float64_than_stock(host, case):
    model, arguments, request = case
    stock, ours = errors(host, model, arguments, request)
    print(f"stock {stock:.3e}, ours {ours:.3e}, with {list(request)}")
    assert ours <= 1.1 * stock
    assert 1e-4 < stock < 0.05, "the blocks do not reach the sample, or the reference is off"


@torch.no_grad()
def test_an_empty_session_gives_the_stocks_bits_and_the_exact_stack_falls_back_nowhere(host, case):
    model, arguments, request = case
    compared = compare(host, model, arguments, request, repeat=2)
    assert compared.failed == {}
    assert compared.identical
    assert set(compared.effective.values()) == {"effective"}, compared.effective
    assert compared.fallbacks == []


@pytest.fixture(scope="module")
def padded():
    """HunyuanVideo-1.5 with two blocks, which look at the text above all, and its short clip with a padded prompt."""
    denoiser = FAMILY_DENOISERS["hunyuanvideo15_480p"].shortened(FEW)
    model = build_family(denoiser, DEVICE)
    for block in model.transformer_blocks:
        block.attn.norm_added_k.weight.data *= 8
    return denoiser, model, call_family(denoiser, denoiser.short, DEVICE)


@torch.no_grad()
def test_without_its_masks_a_padded_prompt_gives_what_stock_gives(host, padded):
    _, model, arguments = padded
    request = {"attention_backend": "auto"}
    stock, ours = errors(host, model, arguments, request)
    print(f"stock {stock:.3e}, ours {ours:.3e}")
    assert ours <= 1.1 * stock
    mask = arguments["encoder_attention_mask"]
    unmasked = {**arguments, "encoder_attention_mask": torch.ones_like(mask)}
    left_out, seen = (
        compare(host, model, call, request).subjects["ours_exact"].sample for call in (arguments, unmasked)
    )
    assert relative(seen, left_out) > 10 * stock, "whether padding is left out makes no difference here"


@torch.no_grad()
def test_stock_has_a_mask_of_all_pairs_on_a_short_clip(padded):
    """Which shows that a mask is seen where there is one."""
    denoiser, model, arguments = padded
    tokens = denoiser.tokens(denoiser.short)
    found = of_forward(model, arguments, tokens)
    assert found["largest_mask_mib"] * 2**20 >= 0.99 * (tokens + denoiser.text) ** 2, found


@torch.no_grad()
def test_no_mask_at_720p_is_large(host):
    """Last: the stock code may run out of memory here."""
    found = mask_memory(host, FAMILY_DENOISERS["hunyuanvideo15_480p"], HUNYUAN15_720P, DEVICE)
    print(found)
    assert found["tokens"] + found["text_tokens"] == 113_585
    ours, stock = found["ours_exact"], found["stock"]
    assert ours["largest_mask_mib"] < 1024, ours
    assert ours["largest_mib"] < 2048, "only the inner states of the feed-forward have more than a GiB"
    assert "failed" in stock or ours["peak_mib"] < stock["peak_mib"]
