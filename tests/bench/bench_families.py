"""One forward of HunyuanVideo and Cosmos denoisers on a CUDA device: stock, an empty session, and the exact stack.

    python tests/bench/bench_families.py [--only NAME ...] [--layers N] [--repeat N] [--limit SECONDS] [--json FILE]
    python tests/bench/bench_families.py --tiny

Published shapes with random weights and random inputs, the subjects in turns in one process. A model of few blocks
comes first: errors against float64 on a short clip, then a forward on the whole clip, which warms up all kernels and
tells how long the whole depth takes. Where that is long it is measured once, without a forward before it; where it
takes more than ``--limit`` in all, with fewer blocks. What does not fit into memory is said, and the next smaller clip
measured.

The result goes under "families" into the JSON, docs/performance.json, and leaves the rest of it alone. Exit code 1 when
an empty session changed a bit, ours is further from float64 than 1.1 times stock, or a model could not be measured.
``--tiny`` runs all of it with small models on a CPU, and measures nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import torch
from family_denoisers import FAMILY_DENOISERS, HUNYUAN15_720P, TINY, FamilyDenoiser, build_family, call_family
from family_forwards import Compared, accepted, compare, errors, free
from mask_memory import mask_memory

from wf_core import Host

KEY, MASKS, OF_MASKS = "families", "mask_memory", "hunyuanvideo15_480p"
FEW = 2
"""Blocks of each kind of the model that comes first."""
SLOW = 15.0
"""Seconds of a forward from which on it is measured once."""
BOUND = 1.1
"""How many times stock's error against float64 ours may be."""


@attrs.frozen
class Effort:
    """How much is measured: forwards of each subject, seconds of them at whole depth, and blocks of each kind."""

    device: str = "cuda"
    repeat: int = 2
    limit: float = 200.0
    layers: int | None = None


@attrs.define
class Phases:
    """Prints and keeps the seconds of each part."""

    name: str
    seconds: dict[str, float] = attrs.field(factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] = round(time.perf_counter() - started, 1)
        print(f"  {self.name}: {phase} {self.seconds[phase]} s", flush=True)


def planned(trial: Compared, few: FamilyDenoiser, whole: FamilyDenoiser, effort: Effort) -> dict[str, Any]:
    """How often to run each subject, and with how many blocks, from what the few blocks took."""
    scale = whole.blocks / few.blocks / 1000
    expected = [measured.ms * scale for measured in trial.subjects.values() if measured.times]
    total = sum(expected)
    once = max(expected) > SLOW or total * (effort.repeat + 1) > effort.limit
    share = min(1.0, effort.limit / total)
    depth = {key: max(1, int(n * share)) for key, n in whole.depth.items()}
    return {"repeat": 1 if once else effort.repeat, "warm_up": not once, "depth": depth}


def figures(compared: Compared) -> dict[str, Any]:
    """The numbers of a comparison by the keys of the JSON."""
    answer: dict[str, Any] = {}
    for name, measured in compared.subjects.items():
        if measured.failed is None:
            answer[f"{name}_ms"] = round(measured.ms, 2)
            answer[f"{name}_peak_mib"] = round(measured.peak_mib + measured.held_mib)
    if not compared.failed:
        answer["ratio"] = round(answer["ours_exact_ms"] / answer["stock_ms"], 4)
    answer |= {"session_identical": compared.identical, "difference": compared.difference}
    if compared.failed:
        answer["failed"] = compared.failed
    return {**answer, "effective": dict(compared.effective), "fallbacks": list(compared.fallbacks)}


def numerics(
    host: Host, model: Any, few: FamilyDenoiser, request: Mapping[str, Any], device: str
) -> dict[str, Any]:
    stock, ours = errors(host, model, call_family(few, few.short, device), request)
    found = {"stock_error": stock, "ours_error": ours, "ratio": ours / stock, "reference": "float64"}
    return {"tokens": few.tokens(few.short), "blocks": few.blocks, **found}


def family(host: Host, name: str, denoiser: FamilyDenoiser, effort: Effort) -> dict[str, Any]:
    """All of one denoiser, by the keys of the JSON."""
    phase, few = Phases(name), denoiser.shortened(FEW)
    with phase("few blocks built"):
        model = build_family(few, effort.device)
        request, dropped = accepted(host, model)
    for key, why in dropped.items():
        print(f"  {name}: left out {key}: {why}", flush=True)
    answer: dict[str, Any] = {"request": request, "dropped": dropped, "text_tokens": denoiser.text}
    answer |= {"valid_text_tokens": denoiser.valid, "of_blocks": denoiser.blocks}
    with phase("errors of few blocks"):
        answer["numerics"] = numerics(host, model, few, request, effort.device)
    free()
    did_not_run = []
    for title, latents in {denoiser.title: denoiser.latents, **denoiser.smaller}.items():
        clip = {"title": title, "tokens": denoiser.tokens(latents)}
        found = of_clip(host, denoiser, model, latents, request, effort, phase)
        if "failed" not in found:
            return {**clip, **answer, **found, "did_not_run": did_not_run, "seconds": phase.seconds}
        print(f"  {name}: {title} does not run: {found['failed']}", flush=True)
        did_not_run.append({**clip, **found})
        free()
    none = {"title": denoiser.title, "tokens": denoiser.tokens(denoiser.latents), "blocks": denoiser.blocks}
    none |= {"session_identical": None, "difference": None}
    return {**none, **answer, "did_not_run": did_not_run, "seconds": phase.seconds}


def of_clip(
    host: Host,
    denoiser: FamilyDenoiser,
    few_blocks: Any,
    latents: Any,
    request: Mapping[str, Any],
    effort: Effort,
    phase: Phases,
) -> dict[str, Any]:
    """A clip with few blocks, and if they run with all of them."""
    few, arguments = denoiser.shortened(FEW), call_family(denoiser, latents, effort.device)
    with phase("forwards of few blocks"):
        trial = compare(host, few_blocks, arguments, request, warm_up=True)
    if trial.failed:
        return {"blocks": few.blocks, **figures(trial)}
    whole = denoiser.shortened(effort.layers) if effort.layers else denoiser
    plan = planned(trial, few, whole, effort)
    whole = attrs.evolve(whole, config={**whole.config, **plan["depth"]})
    free()
    with phase(f"{whole.blocks} blocks built"):
        model = build_family(whole, effort.device)
    with phase(f"forwards of {whole.blocks} blocks"):
        compared = compare(host, model, arguments, request, plan["repeat"], plan["warm_up"])
    answer = figures(compared)
    answer["session_identical"] = trial.identical and answer["session_identical"]
    return {"blocks": whole.blocks, "repeat": plan["repeat"], "warm_up": plan["warm_up"], **answer}


def faults(answer: Mapping[str, Any]) -> list[str]:
    """What must not be, of one model's numbers."""
    found = []
    if "ratio" not in answer:
        found.append(f"no clip ran: {answer['did_not_run']}")
    if answer["session_identical"] is False:
        found.append("an empty session changed a bit")
    if not answer["numerics"]["ratio"] <= BOUND:
        found.append(f"ours is {answer['numerics']['ratio']:.3f} times as far from float64 as stock")
    return found


def machine() -> dict[str, Any]:
    versions = {name: _version(name) for name in ("torch", "triton", "diffusers", "flash_attn_4")}
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no card"
    return {
        "date": datetime.date.today().isoformat(),
        "card": card,
        **versions,
        "cudnn": torch.backends.cudnn.version(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def merge(file: Path | None, found: Mapping[str, Any]) -> None:
    """Put what was found beside what the file already holds."""
    if file is None:
        return
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    kept[KEY] = {**kept.get(KEY, {}), **found}
    file.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*FAMILY_DENOISERS, MASKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--repeat", type=int, default=Effort().repeat, help="forwards of each subject")
    parser.add_argument(
        "--limit", type=float, default=Effort().limit, help="seconds of forwards at whole depth"
    )
    parser.add_argument("--layers", type=int, help="at most so many blocks of each kind, for a quick look")
    parser.add_argument("--tiny", action="store_true", help="small models on a CPU; measures nothing")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not options.tiny and not torch.cuda.is_available():
        parser.exit(2, "bench_families.py needs a CUDA device, and torch sees none: --tiny runs on a CPU\n")
    if options.tiny and options.json and options.json.exists():
        parser.exit(
            2, f"{options.json} may hold measurements, and --tiny measures nothing: name a new file\n"
        )
    return options


@torch.no_grad()
def main(arguments: Sequence[str] | None = None, host: Host | None = None) -> int:
    options = options_of(arguments)
    device = "cpu" if options.tiny else "cuda"
    denoisers = TINY if options.tiny else FAMILY_DENOISERS
    effort = Effort(device, options.repeat, options.limit, options.layers)
    host, wrong = host or Host.discover(), []
    print(machine(), flush=True)
    for name in options.only:
        started = time.perf_counter()
        try:
            if name == MASKS:
                denoiser = denoisers[OF_MASKS]
                latents = denoiser.latents if options.tiny else HUNYUAN15_720P
                answer = mask_memory(host, denoiser, latents, device)
            else:
                answer = family(host, name, denoisers[name], effort)
                wrong += [f"{name}: {fault}" for fault in faults(answer)]
        except Exception as failure:  # the others are measured all the same
            traceback.print_exc()
            wrong.append(f"{name}: {type(failure).__name__}: {failure}")
        else:
            print(name, json.dumps(answer, indent=2), flush=True)
            merge(options.json, {"machine": machine(), name: answer})
        free()
        print(f"{name}: {time.perf_counter() - started:.0f} s in all", flush=True)
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
