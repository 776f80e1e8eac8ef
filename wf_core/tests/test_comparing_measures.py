"""The distances between clips, against values worked out by hand."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch

from wf_core.comparing import perceptual
from wf_core.comparing.measures import cosine, measure, psnr, ssim
from wf_core.comparing.perceptual import Optional, optional_measures

GREY = np.full((2, 16, 16, 3), 0.5, dtype=np.float32)


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((2, 16, 16, 3), dtype=np.float32)


def test_an_error_of_a_tenth_everywhere_is_20_db() -> None:
    assert psnr(GREY, GREY + 0.1) == pytest.approx(20.0, abs=1e-4)


def test_the_error_is_averaged_over_the_clip_before_the_logarithm() -> None:
    other = GREY.copy()
    other[0] += 0.2  # mean square 0.02 over both frames
    assert psnr(GREY, other) == pytest.approx(-10 * np.log10(0.02), abs=1e-4)


def test_equal_clips_have_no_psnr_and_are_identical() -> None:
    found = measure(GREY, GREY.copy(), None, {})
    assert (found.identical, found.psnr, found.ssim, found.latent_cosine) == (True, None, 1.0, None)
    assert not measure(GREY, GREY + 1e-3, None, {}).identical


def test_ssim_of_two_flat_clips_is_the_luminance_term() -> None:
    a, b, c = 0.5, 0.75, 0.01**2
    assert ssim(GREY, GREY + 0.25) == pytest.approx((2 * a * b + c) / (a * a + b * b + c), abs=1e-5)


def test_ssim_sees_structure_that_the_mean_does_not() -> None:
    clip = noise()
    assert ssim(clip, clip[:, ::-1].copy()) < 0.2
    assert ssim(clip, clip + 0.01) > 0.98


def test_a_frame_smaller_than_the_window_has_no_ssim() -> None:
    assert ssim(GREY[:, :10], GREY[:, :10]) is None
    assert ssim(GREY[:, :11], GREY[:, :11]) == 1.0


def test_the_cosine_of_latents() -> None:
    a = torch.tensor([1.0, 0.0])
    assert cosine(a, torch.tensor([1.0, 1.0])) == pytest.approx(2**-0.5)
    assert cosine(a, -a) == -1.0
    assert cosine(a, torch.zeros(2)) is None


def test_optional_measures_are_called_with_the_plain_clip_first() -> None:
    more = {"lpips": Optional(lambda plain, other: float(other.mean() - plain.mean()))}
    assert measure(GREY, GREY + 0.25, None, more).lpips == pytest.approx(0.25)
    assert measure(GREY, GREY, None, {"vmaf": Optional(None, "not here")}).vmaf is None


def test_lpips_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(perceptual, "find_spec", lambda name: None)
    found = optional_measures()
    assert [found[name].measure for name in ("lpips", "vmaf")] == [None, None]
    assert "lpips is not installed" in found["lpips"].missing and "imageio-ffmpeg" in found["vmaf"].missing
    monkeypatch.setattr(perceptual, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert perceptual.LPIPS_BACKBONE in optional_measures()["lpips"].missing


def test_lpips_is_the_mean_over_frames(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """With a network that stands for the real one: the package is not among the tests' own."""

    class Network:
        def __init__(self, net: str, verbose: bool) -> None:
            assert (net, verbose) == ("alex", False)

        def __call__(self, a: torch.Tensor, b: torch.Tensor, normalize: bool) -> torch.Tensor:
            assert a.shape == (1, 3, 16, 16) and normalize
            return (a - b).abs().mean().view(1, 1, 1, 1)

    weights = tmp_path / "checkpoints" / perceptual.LPIPS_BACKBONE
    weights.parent.mkdir()
    weights.touch()
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setitem(sys.modules, "lpips", types.SimpleNamespace(LPIPS=Network))
    monkeypatch.setattr(perceptual, "find_spec", lambda name: object())
    other = GREY.copy()
    other[0] += 0.5
    assert optional_measures()["lpips"].measure(GREY, other) == pytest.approx(0.25)


def test_vmaf_falls_with_noise() -> None:
    vmaf = optional_measures()["vmaf"]
    if vmaf.measure is None:
        pytest.skip(vmaf.missing)
    ramp = np.linspace(0, 1, 64, dtype=np.float32)
    clip = np.broadcast_to(ramp[None, :, None, None], (3, 64, 64, 3)).copy()
    noisy = (clip + np.random.default_rng(0).normal(0, 0.2, clip.shape)).clip(0, 1)
    same, worse = vmaf.measure(clip, clip), vmaf.measure(clip, noisy)
    assert 0 <= worse < same - 10 and same <= 100
    assert vmaf.measure(GREY, GREY) is None  # libvmaf would crash on 16 pixels
