"""Measured on a CUDA device, each row beside its stock peer in the same process: Wan2.1-T2V-1.3B's published shape with
random weights, and its VAE. Prints tables; ``--json FILE`` keeps them.

Medians of repeated runs timed with CUDA events after a warm-up; inputs are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from device_time import milliseconds_of
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel

from wf_core import Host, WfError

LATENTS = (1, 16, 21, 60, 104)
BACKENDS = ("sdpa", "cudnn", "torch_flash", "efficient")


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    call()
    return statistics.median(milliseconds_of(call) for _ in range(repeats))


def wan_1_3b() -> WanPipeline:
    """The published shape; weights cast as ``from_pretrained(dtype=torch.bfloat16)`` does."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        transformer = WanTransformer3DModel(
            num_attention_heads=12, attention_head_dim=128, ffn_dim=8960, num_layers=30, freq_dim=256
        )
        vae = AutoencoderKLWan()
    keep = set(transformer._keep_in_fp32_modules)
    for name, parameter in transformer.named_parameters():
        if not keep & set(name.split(".")):
            parameter.data = parameter.data.to(torch.bfloat16)
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    pipe = WanPipeline(
        tokenizer=None, text_encoder=None, transformer=transformer.eval(), vae=vae.eval(), scheduler=scheduler
    )
    pipe.transformer.requires_grad_(False)
    pipe.vae.requires_grad_(False)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator("cuda").manual_seed(1)
    return {
        "hidden_states": torch.randn(LATENTS, generator=g, device="cuda", dtype=torch.bfloat16),
        "timestep": torch.tensor([500.0], device="cuda"),
        "encoder_hidden_states": torch.randn(1, 512, 4096, generator=g, device="cuda", dtype=torch.bfloat16),
    }


@torch.no_grad()
def forwards(host: Host, pipe: WanPipeline) -> list[dict[str, Any]]:
    call = inputs()
    stock = pipe.transformer(**call, return_dict=False)[0]
    rows = [{"name": "stock", "ms": milliseconds(lambda: pipe.transformer(**call, return_dict=False), 5)}]
    for backend in ("", *BACKENDS):
        request = {"attention_backend": backend} if backend else {}
        with host.session(pipe, request) as session, session.run(num_inference_steps=1):
            model = session.pipe.transformer
            out = model(**call, return_dict=False)[0]
            error = float((out - stock).float().norm() / stock.float().norm())
            ms = milliseconds(lambda model=model: model(**call, return_dict=False), 5)
        rows.append({"name": f"session {backend or 'empty'}", "ms": ms, "relative_error": error})
    rows.append(
        {"name": "stock again", "ms": milliseconds(lambda: pipe.transformer(**call, return_dict=False), 5)}
    )
    return rows


@torch.no_grad()
def decodes(host: Host, pipe: WanPipeline) -> list[dict[str, Any]]:
    latents = torch.randn(LATENTS, device="cuda", generator=torch.Generator("cuda").manual_seed(2))
    requests: dict[str, dict[str, Any]] = {
        "stock fp32": {},
        "chunk 2": {"vae_temporal_chunk_size": 2},
        "chunk 4": {"vae_temporal_chunk_size": 4},
        "channels last": {"vae_channels_last_3d": True},
        "autocast bf16": {"vae_decode_autocast": "bf16"},
        "autocast bf16, channels last, chunk 4": {
            "vae_decode_autocast": "bf16",
            "vae_channels_last_3d": True,
            "vae_temporal_chunk_size": 4,
        },
        "tiling 34/18": {"vae_spatial_tiling": True},
    }
    stock = pipe.vae.decode(latents, return_dict=False)[0]
    rows = []
    for name, request in requests.items():
        with host.session(pipe, request) as session, session.run():
            vae = session.pipe.vae
            out = vae.decode(latents, return_dict=False)[0]
            worst = float((out - stock).abs().max())
            torch.cuda.reset_peak_memory_stats()
            ms = milliseconds(lambda vae=vae: vae.decode(latents, return_dict=False), 3)
            peak = torch.cuda.max_memory_allocated() / 2**30
        rows.append({"name": name, "ms": ms, "worst_difference": worst, "peak_gib": peak})
    return rows


def runs(host: Host, pipe: WanPipeline) -> list[dict[str, Any]]:
    """A whole denoising run of 12 steps with guidance, without and with a cache that skips what it may."""
    g = torch.Generator("cuda").manual_seed(3)
    call = {
        "prompt_embeds": torch.randn(1, 512, 4096, generator=g, device="cuda", dtype=torch.bfloat16),
        "negative_prompt_embeds": torch.randn(1, 512, 4096, generator=g, device="cuda", dtype=torch.bfloat16),
        "height": 480, "width": 832, "num_frames": 81, "num_inference_steps": 12, "output_type": "latent",
    }  # fmt: skip
    requests: dict[str, dict[str, Any]] = {
        "dense": {},
        "teacache, max_skip 1": {
            "feature_cache": {
                "algorithm": "teacache",
                "coefficients": [1.0, 0.0],
                "threshold": 100.0,
                "max_skip": 1,
            }
        },
    }
    rows = []
    for name, request in requests.items():
        with host.session(pipe, request) as session:
            torch.cuda.synchronize()
            started = time.perf_counter()
            session.pipe(**call, generator=torch.Generator("cuda").manual_seed(4))
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            cache = session.report["steps"].get("caches", {}).get("teacache", {"computed": 24, "skipped": 0})
        rows.append({"name": name, "s": seconds, "computed": cache["computed"], "skipped": cache["skipped"]})
    return rows


def opening(host: Host, pipe: WanPipeline) -> list[dict[str, Any]]:
    times = []
    for _ in range(7):
        started = time.perf_counter()
        host.session(pipe, {"attention_backend": "cudnn"}).close()
        times.append((time.perf_counter() - started) * 1e3)
    return [{"name": "session open and close", "ms": statistics.median(times)}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "bench_gpu.py needs a CUDA device, and torch sees none\n")
    host, pipe = Host.discover(), wan_1_3b()
    card = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    tables: dict[str, Any] = {"machine": card}
    print(card)
    for measure in (opening, forwards, decodes, runs):
        try:
            tables[measure.__name__] = measure(host, pipe)
        except WfError as error:
            tables[measure.__name__] = [{"name": f"not run: {error}"}]
        print(f"\n{measure.__name__}")
        for row in tables[measure.__name__]:
            print(
                "  "
                + "  ".join(f"{k}={v:.5g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())
            )
        if arguments.json:
            arguments.json.write_text(json.dumps(tables, indent=2) + "\n")


if __name__ == "__main__":
    main()
