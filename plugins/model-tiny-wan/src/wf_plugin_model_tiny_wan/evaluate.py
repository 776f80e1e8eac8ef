"""Measure a checkpoint: all 280 prompts through the stock pipeline, the reader, and the autoencoder.

python -m wf_plugin_model_tiny_wan.evaluate [--checkpoint DIR] [--guidance 3 ...] [--device cpu] [--json FILE]
"""

import argparse
import json
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanPipeline

from wf_plugin_model_tiny_wan import clips, score
from wf_plugin_model_tiny_wan.reader import DigitReader, load_reader

CHECKPOINT = Path(__file__).with_name("checkpoint")
SCHEMA = 1


def generate(
    pipeline: WanPipeline, prompts: list[str], guidance_scale: float, steps: int, seed: int, batch: int
) -> torch.Tensor:
    """Return clips ``[len(prompts), 17, 128, 128, 3]`` float32 in [0, 1] on the CPU; noise is drawn per prompt."""
    parts = []
    for begin in range(0, len(prompts), batch):
        some = prompts[begin : begin + batch]
        generators = [torch.Generator("cpu").manual_seed(seed + begin + i) for i in range(len(some))]
        video = pipeline(
            prompt=some,
            height=clips.FRAME_SIZE,
            width=clips.FRAME_SIZE,
            num_frames=clips.NUM_FRAMES,
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            generator=generators,
            output_type="pt",
        ).frames
        parts.append(video.permute(0, 1, 3, 4, 2).float().cpu())
    return torch.cat(parts)


@torch.no_grad()
def reconstruct(vae: AutoencoderKLWan, video: torch.Tensor, batch: int = 14) -> torch.Tensor:
    """Encode (posterior mean) and decode clips ``[B, 3, F, H, W]`` in [0, 1]; the same shape and range comes back."""
    parts = []
    for some in video.split(batch):
        latents = vae.encode((some * 2 - 1).to(vae.device, vae.dtype)).latent_dist.mode()
        parts.append((vae.decode(latents).sample.float().cpu() / 2 + 0.5).clamp(0, 1))
    return torch.cat(parts)


def psnr(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the peak signal-to-noise ratio of each clip in dB, ``[B]``, for values in [0, 1]."""
    return -10 * ((output - target) ** 2).flatten(1).mean(1).log10()


def evaluate_vae(
    vae: AutoencoderKLWan, images: torch.Tensor, labels: torch.Tensor, count: int, reader: DigitReader
) -> dict[str, object]:
    """Reconstruct ``count`` fresh clips of the given handwriting; return PSNR and the scores before and after."""
    described = clips.sample_clips(images, labels, count, torch.Generator().manual_seed(2024))
    video = clips.render(described)
    output = reconstruct(vae, video)
    ratio = psnr(output, video)
    scores = {
        name: score.score_clips(v.permute(0, 2, 3, 4, 1), described.prompts(), reader).means()
        for name, v in (("rendered", video), ("reconstructed", output))
    }
    return {
        "clips": count,
        "psnr_mean_db": ratio.mean().item(),
        "psnr_min_db": ratio.min().item(),
        "scores": scores,
    }


def pick_prompts(limit: int | None) -> list[str]:
    """Return all 280 prompts, or ``limit`` of them spread over digits, colours and directions."""
    prompts = clips.all_prompts()
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[(i * len(prompts) // limit + i % 28) % len(prompts)] for i in range(limit)]


def evaluate(
    checkpoint: Path = CHECKPOINT,
    *,
    guidance: tuple[float, ...] = (3.0,),
    steps: int = 30,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    limit: int | None = None,
    batch: int = 28,
    seed: int = 0,
    reader_file: Path | None = None,
    styles_file: Path | None = None,
) -> dict[str, object]:
    """Measure one checkpoint directory; return a JSON-ready record with a schema number."""
    reader = load_reader(reader_file)
    pipeline = WanPipeline.from_pretrained(checkpoint, dtype=dtype).to(device)
    pipeline.set_progress_bar_config(disable=True)
    prompts = pick_prompts(limit)
    record: dict[str, object] = {
        "schema": SCHEMA,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "dtype": str(dtype).removeprefix("torch."),
        "steps": steps,
        "prompts": len(prompts),
        "generation": {},
    }
    for scale in guidance:
        begin = time.perf_counter()
        video = generate(pipeline, prompts, scale, steps, seed, batch)
        seconds = time.perf_counter() - begin
        means = score.score_clips(video, prompts, reader).means()
        record["generation"][f"{scale:g}"] = {**means, "seconds": round(seconds, 2)}
        print(f"guidance {scale:g}: {means} in {seconds:.1f} s", flush=True)
    clip_count = min(70, len(prompts))
    record["vae"] = evaluate_vae(pipeline.vae, *clips.load_styles(styles_file), clip_count, reader)
    try:
        images, labels = clips.load_handwriting()
    except ImportError:
        print("scikit-learn is not installed: nothing measured on held-out handwriting", flush=True)
    else:
        _, held_out = clips.split_handwriting(labels)
        record["vae_held_out_handwriting"] = evaluate_vae(
            pipeline.vae, images[held_out], labels[held_out], clip_count, reader
        )
    return record


def main(argv: list[str] | None = None) -> None:
    """Command line: print the record as JSON and, with ``--json``, write it to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--guidance", type=float, nargs="+", default=[3.0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--limit", type=int, help="use this many prompts instead of 280")
    parser.add_argument("--batch", type=int, default=28, help="prompts in one pipeline call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", type=Path, help="reader.safetensors of another build")
    parser.add_argument("--styles", type=Path, help="styles.safetensors of another build")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    record = evaluate(
        options.checkpoint,
        guidance=tuple(options.guidance),
        steps=options.steps,
        device=options.device,
        dtype=getattr(torch, options.dtype),
        limit=options.limit,
        batch=options.batch,
        seed=options.seed,
        reader_file=options.reader,
        styles_file=options.styles,
    )
    text = json.dumps(record, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
