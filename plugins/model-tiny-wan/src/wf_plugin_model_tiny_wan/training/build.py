"""Make the whole checkpoint: reader, styles, autoencoder, statistics, latents, denoiser.

    python -m wf_plugin_model_tiny_wan.training.build --out DIR [--init DIR] [--minutes M] [--device cuda]

Writes ``DIR/checkpoint/`` (a diffusers directory), ``DIR/reader.safetensors`` and ``DIR/styles.safetensors``.
"""

import argparse
import copy
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file

from wf_plugin_model_tiny_wan import clips
from wf_plugin_model_tiny_wan.training import architecture
from wf_plugin_model_tiny_wan.training.budget import Budget
from wf_plugin_model_tiny_wan.training.latents import encode_clips
from wf_plugin_model_tiny_wan.training.save import save_pipeline, with_statistics
from wf_plugin_model_tiny_wan.training.train_denoiser import train_denoiser
from wf_plugin_model_tiny_wan.training.train_reader import train_reader
from wf_plugin_model_tiny_wan.training.train_text_encoder import encode_prompts, train_text_encoder
from wf_plugin_model_tiny_wan.training.train_vae import train_vae


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; the defaults are the recipe of the shipped checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--init", type=Path, help="start weights: DIR/<part>.safetensors or a diffusers directory"
    )
    start.add_argument(
        "--from-scratch", action="store_true", help="random weights (what happens without --init)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=12.0, help="denoiser and autoencoder together")
    parser.add_argument(
        "--vae-minutes",
        type=float,
        help="of these for the autoencoder (0: keep it); default 2/5, or 1/6 with --init",
    )
    parser.add_argument("--steps", type=int, help="take this many denoiser steps whatever the time")
    parser.add_argument("--vae-steps", type=int, help="take this many autoencoder steps whatever the time")
    parser.add_argument(
        "--reader-steps", type=int, default=1500, help="0: make no reader, the packaged one stays"
    )
    parser.add_argument("--styles", type=int, default=5, help="handwriting samples per digit")
    parser.add_argument("--clips", type=int, default=32_000, help="clips to encode for the denoiser")
    parser.add_argument("--batch", type=int, default=192, help="clips in a denoiser step")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3, help="peak rate of the denoiser")
    return parser.parse_args(argv)


def build_vae(options: argparse.Namespace, minutes: float) -> AutoencoderKLWan:
    """Train the autoencoder on the handwriting that is not held out, from nothing or from ``--init``."""
    images, labels = clips.load_handwriting()
    seen, _ = clips.split_handwriting(labels)
    vae = architecture.make_vae()
    started = architecture.load_start(vae, options.init, "vae")
    if minutes == 0 and not options.vae_steps:
        return vae.to(options.device).eval().requires_grad_(False)
    return train_vae(
        vae.to(options.device),
        images[seen].to(options.device),
        labels[seen].to(options.device),
        Budget(60 * minutes, options.vae_steps),
        learning_rate=7e-4 if started else 2e-3,
        batch=min(24, options.batch),
        pool=min(4096, options.clips),
    )


def build(options: argparse.Namespace) -> None:
    """Run all stages and write the results under ``options.out``."""
    torch.manual_seed(0)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.reader_steps:
        reader, _ = train_reader(options.reader_steps, options.device)
        save_file(reader.cpu().state_dict(), options.out / "reader.safetensors")

    images, labels = clips.load_handwriting()
    seen, _ = clips.split_handwriting(labels)
    chosen = clips.choose_styles(images[seen], labels[seen], options.styles)
    save_file({"glyphs": (images[seen][chosen] * 16).round().byte()}, options.out / "styles.safetensors")
    images, labels = (t.to(options.device) for t in clips.load_styles(options.out / "styles.safetensors"))

    tokenizer = architecture.make_tokenizer()
    text_encoder = architecture.make_text_encoder()
    if not architecture.load_start(text_encoder, options.init, "text_encoder"):
        train_text_encoder(text_encoder, tokenizer, 300)
    text_encoder.to(torch.bfloat16).float().eval()
    embeddings = encode_prompts(text_encoder, tokenizer, [*clips.all_prompts(), ""])

    share = 1 / 6 if options.init else 2 / 5
    vae_minutes = options.minutes * share if options.vae_minutes is None else options.vae_minutes
    vae = build_vae(options, vae_minutes)
    data = encode_clips(vae, images, labels, options.clips)
    vae = with_statistics(vae.cpu(), data.mean.cpu(), data.std.cpu())
    print(f"encoded {len(data.latents)} clips", flush=True)

    def save(averaged: torch.nn.Module, step: int = 0) -> None:
        # The averaged weights stay in use on the device, so a copy is rounded and written.
        transformer = architecture.make_transformer()
        transformer.load_state_dict({name: value.cpu() for name, value in averaged.state_dict().items()})
        parts = (transformer, copy.deepcopy(vae), copy.deepcopy(text_encoder), tokenizer)
        save_pipeline(options.out / "checkpoint", *parts)

    transformer = architecture.make_transformer()
    architecture.load_start(transformer, options.init, "transformer")
    averaged = train_denoiser(
        transformer.to(options.device),
        data,
        embeddings,
        Budget(60 * (options.minutes - vae_minutes), options.steps),
        learning_rate=options.learning_rate,
        batch=options.batch,
        on_report=lambda module, step: save(module, step) if step % 2500 == 0 else None,
    )
    save(averaged)
    print(f"saved {options.out}", flush=True)


if __name__ == "__main__":
    build(parse_arguments())
