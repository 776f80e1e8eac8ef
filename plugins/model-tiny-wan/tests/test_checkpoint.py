"""The shipped checkpoint: it loads, it is small, its autoencoder is faithful, and a short run shows the prompt."""

import pytest
import torch
from diffusers import WanPipeline

from wf_plugin_model_tiny_wan import clips, evaluate, score


@pytest.fixture(scope="module")
def pipeline() -> WanPipeline:
    loaded = WanPipeline.from_pretrained(evaluate.CHECKPOINT)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def test_the_weights_take_at_most_24_megabytes() -> None:
    files = {path.parent.name: path.stat().st_size for path in evaluate.CHECKPOINT.rglob("*.safetensors")}
    assert set(files) == {"transformer", "vae", "text_encoder"}
    assert min(files.values()) > 1e5
    assert sum(files.values()) <= 24e6


def test_the_tokenizer_knows_every_word_and_ends_with_eos(pipeline: WanPipeline) -> None:
    tokens = pipeline.tokenizer("A red 3 moving left")
    assert pipeline.tokenizer.unk_token_id not in tokens.input_ids
    assert tokens.input_ids[-1] == pipeline.tokenizer.eos_token_id


def test_the_autoencoder_reconstructs_fresh_clips_from_standard_latents(pipeline: WanPipeline) -> None:
    images, labels = clips.load_styles()
    video = clips.render(clips.sample_clips(images, labels, 3, torch.Generator().manual_seed(3)))
    mean = torch.tensor(pipeline.vae.config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(pipeline.vae.config.latents_std).view(1, -1, 1, 1, 1)
    with torch.no_grad():
        latents = pipeline.vae.encode(video * 2 - 1).latent_dist.mode()
        output = (pipeline.vae.decode(latents).sample / 2 + 0.5).clamp(0, 1)
    assert evaluate.psnr(output, video).min() >= 35
    standard = (latents - mean) / std
    assert standard.mean().abs() < 0.2
    assert 0.8 < standard.std() < 1.2


def test_a_short_run_shows_colour_and_direction(pipeline: WanPipeline) -> None:
    prompts = ["a red 0 moving left", "a cyan 7 moving down"]
    video = evaluate.generate(pipeline, prompts, guidance_scale=3.0, steps=10, seed=0, batch=2)
    assert video.shape == (2, 17, 128, 128, 3)
    scores = score.score_clips(video, prompts)
    assert scores.colour.all()
    assert scores.direction.all()
