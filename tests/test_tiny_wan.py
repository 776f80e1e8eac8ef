"""tiny-wan, the trained model: identity, the stated tolerances, and the demo command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support import models
from wf_core.checkpoints import load_pipeline
from wf_plugin_model_tiny_wan import clips
from wf_plugin_model_tiny_wan.score import score_clips

PROMPT = "a red 3 moving left"


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def pipe(host):
    return models.quiet(load_pipeline(host.model_directory("tiny-wan")))


@pytest.fixture(scope="module")
def latents(pipe):
    """What a pipeline hands to its VAE for a real clip, ``[1, 16, 4, 10, 16]``: its middle, encoded."""
    images, labels = clips.load_styles()
    video = clips.render(clips.sample_clips(images, labels, 1, torch.Generator().manual_seed(3)))
    video = video[:, :, :13, 24:104]
    with torch.no_grad():
        return pipe.vae.encode(video * 2 - 1).latent_dist.mode()


@pytest.fixture(scope="module")
def decoded(pipe, latents):
    """The stock decode of ``latents``."""
    with torch.no_grad():
        return pipe.vae.decode(latents).sample


@pytest.fixture(scope="module")
def denoised(pipe):
    """The stock latents of a run of one step: the arguments of the backends' runs."""
    with torch.no_grad():
        return pipe(**arguments(steps=1, output_type="latent")).frames


def arguments(steps=2, **more):
    return {
        "prompt": PROMPT,
        "height": 128,
        "width": 128,
        "num_frames": 5,
        "num_inference_steps": steps,
        "guidance_scale": 3.0,
        "generator": torch.Generator().manual_seed(0),
        "output_type": "pt",
        **more,
    }


def psnr(ours, theirs):
    """Decibels, for videos in [-1, 1]."""
    error = float((ours - theirs).double().square().mean())
    return 10 * math.log10(4 / error) if error else math.inf


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_empty_session_is_bit_identical(host, pipe, dtype):
    base = (
        pipe if dtype == "float32" else models.quiet(load_pipeline(host.model_directory("tiny-wan"), dtype))
    )
    stock = base(**arguments()).frames
    with host.session(base, {}, verify_contents=True) as session:
        assert torch.equal(session.pipe(**arguments()).frames, stock)


def psnr_at_least(bound):
    return lambda ours, stock: bound <= psnr(ours, stock) < math.inf


VAE_FEATURES = {
    "chunk 2": ({"vae_temporal_chunk_size": 2}, lambda ours, stock: (ours - stock).abs().max() <= 1e-5),
    "chunk 1": ({"vae_temporal_chunk_size": 1}, torch.equal),
    "channels last": ({"vae_channels_last_3d": True}, torch.equal),
    "autocast bf16": ({"vae_decode_autocast": "bf16"}, psnr_at_least(40)),
    "autocast fp16": ({"vae_decode_autocast": "fp16"}, psnr_at_least(60)),
    "tiles": (
        {"vae_spatial_tiling": True, "vae_tile_size": [12, 12], "vae_tile_stride": [6, 6]},
        psnr_at_least(35),
    ),
    "one tile": ({"vae_spatial_tiling": True}, torch.equal),
}


@pytest.mark.parametrize("name", VAE_FEATURES)
def test_vae_features_keep_their_stated_tolerance_on_trained_weights(host, pipe, latents, decoded, name):
    """Within the tolerance, and by the feature's own work: the stock decode alone would be within it too."""
    request, within = VAE_FEATURES[name]
    with host.session(pipe, request) as session:
        with session.run():
            ours = session.pipe.vae.decode(latents).sample
        (claim,) = session.report["effective"].values()
    assert within(ours, decoded), psnr(ours, decoded)
    evidence = claim["evidence"]
    assert evidence["attempts"] == 1
    assert evidence.get("successes", 0) == (0 if name == "one tile" else 1)


@pytest.mark.parametrize("backend", ["sdpa", "math", "torch_flash", "flex"])
def test_attention_backends_agree_on_trained_weights(host, pipe, denoised, backend):
    with host.session(pipe, {"attention_backend": backend}) as session:
        ours = session.pipe(**arguments(steps=1, output_type="latent")).frames
        (claim,) = session.report["effective"].values()
    assert claim["state"] == "effective"
    layers = pipe.transformer.config.num_layers
    assert claim["evidence"]["attempts"] == claim["evidence"]["successes"] == 2 * 2 * layers
    error = float((ours - denoised).norm() / denoised.norm())
    assert error == 0.0 if backend == "sdpa" else error <= 1e-4, error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio's reader of the clip
def test_the_demo_command_makes_a_clip_a_sheet_and_an_honest_report(tmp_path):
    command = [
        sys.executable, "-m", "wf_core", "run", "tiny-wan", "--prompt", PROMPT, "-s", "feature_cache=teacache",
        "-s", "vae_temporal_chunk_size=2", "--out", "demo/clip.mp4", "--report", "demo/report.json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"clip.mp4", "clip.png", "report.json"}
    report = json.loads((tmp_path / "demo/report.json").read_text())
    assert {name: claim["state"] for name, claim in report["effective"].items()} == {
        "teacache": "effective",
        "vae-temporal-chunk": "effective",
    }
    cache = report["steps"]["caches"]["teacache"]
    assert cache["computed"] + cache["skipped"] == 60
    assert cache["skipped"] >= 20
    assert "computed" in done.stdout and "skipped" in done.stdout
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert f"computed={cache['computed']}, skipped={cache['skipped']}" in readme, (
        "the README shows another run"
    )
    assert_the_clip_shows_the_prompt(tmp_path / "demo/clip.mp4")


def assert_the_clip_shows_the_prompt(path):
    import imageio.v3 as iio

    frames = torch.from_numpy(iio.imread(path)).float() / 255
    assert frames.shape == (17, 128, 128, 3)
    scores = score_clips(frames[None], [PROMPT])
    assert bool(scores.colour[0]) and bool(scores.direction[0]) and bool(scores.digit[0])
