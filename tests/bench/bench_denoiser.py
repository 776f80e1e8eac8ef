"""One forward of Wan denoisers on a CUDA device: stock diffusers and the exact stack, in turns, in one process.

    python tests/bench/bench_denoiser.py [--only NAME ...] [--compile] [--layers N] [--skip-attention] [--json FILE]

Published shapes with random weights and random inputs. Milliseconds are medians of CUDA events over forwards in turns
after a warm-up; peak memory is what a forward needs beside the weights, what the session keeps between calls included.
Errors are relative to a float64 forward (tests/support/wan64.py) on a shorter clip. ``--compile`` adds stock and ours
under ``compile_repeated_blocks``. The JSON is docs/performance.json.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import torch
from attention_calls import attention_table
from denoisers import DENOISERS, Denoiser, build, call
from device_time import milliseconds_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import wan64
from wf_core import Host
from wf_core.api import Technique

EXACT = {
    "attention_backend": "auto",
    "fused_rope": True,
    "fused_modulation": True,
    "fused_gelu": True,
    "static_cross_kv": True,
}
REPEAT = 5
SHORT = 5
"""Latent frames of the clip that errors are measured on."""


def measure(subjects: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, dict[str, float]]:
    """Milliseconds and peak MiB beside what is allocated before, of each, in turns."""
    peaks, times = {}, {name: [] for name in subjects}
    for name, subject in subjects.items():
        subject()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        subject()
        torch.cuda.synchronize()
        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    for _ in range(repeat):
        for name, subject in subjects.items():
            times[name].append(milliseconds_of(subject))
    return {name: {"ms": statistics.median(times[name]), "peak_mib": peaks[name]} for name in subjects}


class Watch(Technique):
    """Keeps the hidden states after each block."""

    def __init__(self) -> None:
        self.states: list[torch.Tensor] = []

    def handlers(self) -> Mapping[str, Any]:
        return {"block": self.block}

    def block(self, inner: Any, site: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = inner(x)
        self.states.append(out.clone())
        return out


def errors(host: Host, model: Any, denoiser: Denoiser, request: Mapping[str, Any]) -> list[float]:
    """Relative errors of the states after each block, and of the sample, on a short clip."""
    arguments = call(denoiser, (*denoiser.latents[:2], SHORT, *denoiser.latents[3:]))
    watch = Watch()
    with host.session(model, request, extra={"watch": watch}) as session, session.run(num_inference_steps=1):
        sample = session.model(**arguments)[0]
    exact = wan64.states(
        model, arguments["hidden_states"], arguments["timestep"], arguments["encoder_hidden_states"]
    )
    return [wan64.relative(ours, state) for ours, state in zip((*watch.states, sample), exact, strict=True)]


def numerics(host: Host, model: Any, denoiser: Denoiser) -> dict[str, Any]:
    stock, ours = errors(host, model, denoiser, {}), errors(host, model, denoiser, EXACT)
    return {
        "tokens": SHORT * denoiser.tokens // denoiser.latents[2],
        "stock_error": stock[-1],
        "ours_error": ours[-1],
        "ratio": ours[-1] / stock[-1],
        "worst_block_ratio": max(o / s for o, s in zip(ours[:-1], stock[:-1], strict=True)),
    }


def forwards(host: Host, denoiser: Denoiser, compiled: bool, cast_whole: bool, repeat: int) -> dict[str, Any]:
    """All of one denoiser, by the keys of the JSON."""
    model, arguments = build(denoiser), call(denoiser)
    with ExitStack() as stack:

        def ours(request: Mapping[str, Any]) -> Any:
            session = stack.enter_context(host.session(model, request))
            stack.enter_context(session.run(num_inference_steps=1))
            return session

        exact = ours(EXACT)
        subjects: dict[str, Any] = {"stock": model, "session": ours({}).model, "ours_exact": exact.model}
        if cast_whole:
            subjects["stock_cast_whole"] = copy.deepcopy(model).to(torch.bfloat16)
        if compiled:
            subjects |= {"stock_compiled": copy.deepcopy(model), "ours_exact_compiled": ours(EXACT).model}
            for subject in ("stock_compiled", "ours_exact_compiled"):
                started = time.perf_counter()
                subjects[subject].compile_repeated_blocks(fullgraph=True)
                subjects[subject](**arguments)
                print(f"  {subject}: cold compile {time.perf_counter() - started:.0f} s", flush=True)
        reference = model(**arguments)[0]
        assert torch.equal(subjects["session"](**arguments)[0], reference), "an empty session changed a bit"
        del reference
        result = {s: lambda m=m: m(**arguments) for s, m in subjects.items()}
        found = measure(result, repeat)
        held = exact.held_bytes()
    answer: dict[str, Any] = {"tokens": denoiser.tokens, "request": EXACT}
    for subject, figures in found.items():
        answer[f"{subject}_ms"] = round(figures["ms"], 2)
        kept = held if subject.startswith("ours") else 0
        answer[f"{subject}_peak_mib"] = round(figures["peak_mib"] + kept / 2**20)
    answer["ratio"] = round(answer["ours_exact_ms"] / answer["stock_ms"], 4)
    answer["effective"] = {f: claim["state"] for f, claim in exact.report["effective"].items()}
    answer["numerics"] = numerics(host, model, denoiser)
    return answer


def machine() -> dict[str, Any]:
    import diffusers
    import triton

    return {
        "date": datetime.date.today().isoformat(),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "diffusers": diffusers.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(DENOISERS), default=list(DENOISERS))
    parser.add_argument(
        "--compile", action="store_true", help="stock and ours compiled too, for the first denoiser"
    )
    parser.add_argument("--skip-attention", action="store_true")
    parser.add_argument("--repeat", type=int, default=REPEAT)
    parser.add_argument("--layers", type=int, help="fewer blocks, for a quick look")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "bench_denoiser.py needs a CUDA device, and torch sees none\n")
    host = Host.discover()
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    answer = {**kept, **machine()}  # what another call of this script measured stays
    print(machine())

    def keep() -> None:
        if options.json:
            options.json.write_text(json.dumps(answer, indent=2) + "\n")

    if not options.skip_attention:
        answer["attention"] = attention_table(host)
        keep()
    for number, name in enumerate(options.only):
        first = number == 0
        denoiser = DENOISERS[name]
        if options.layers:
            denoiser = attrs.evolve(denoiser, config={**denoiser.config, "num_layers": options.layers})
        answer[name] = forwards(host, denoiser, options.compile and first, first, options.repeat)
        print(name, json.dumps(answer[name], indent=2), flush=True)
        keep()
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
