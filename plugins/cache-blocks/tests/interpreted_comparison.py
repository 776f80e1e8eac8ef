"""The kernel of `fused` in Triton's interpreter, beside torch: run with TRITON_INTERPRET=1. Prints one object."""

from __future__ import annotations

import itertools
import json
import sys

import torch
from blocks_by_hand import driver, value

from wf_plugin_cache_blocks import comparison, fused


def once(dtype: torch.dtype, factor: int, tokens: int, compares: bool, keeps: bool) -> dict[str, object]:
    """One comparison of strided hidden states with what was kept."""
    generator = torch.Generator().manual_seed(tokens)
    whole = (
        torch.randn(2, tokens, 13, generator=generator).to(dtype).transpose(0, 1).contiguous().transpose(0, 1)
    )
    sample = (whole.transpose(1, 2).contiguous().transpose(1, 2) if factor == 3 else whole)[..., ::factor]
    kept = torch.randn(sample.shape, generator=generator).to(dtype)
    before = kept.clone()
    moved, sizes = fused.compare(sample, kept, compares=compares, keeps=keeps)
    found: dict[str, object] = {
        "case": [str(dtype), factor, tokens],
        "parts": moved.shape[1],
        "kept": torch.equal(kept, sample if keeps else before),
    }
    if compares:
        wanted = (sample.double() - before.double()).abs().flatten(1).sum(1)
        found["moved"] = (moved.sum(1) / wanted - 1).abs().max().item()
    if keeps:
        found["size"] = (sizes.sum(1) / sample.double().abs().flatten(1).sum(1) - 1).abs().max().item()
    return found


def run(alone: bool, reference: str) -> dict[str, object]:
    """Twelve calls of dynamicblock, every block compared by the kernel where it is ``alone``."""
    comparison.TOGETHER = 0 if alone else 2**21
    player = driver("dynamicblock", threshold=0.3, reference=reference)
    player.begin(player.view(12))
    generator = torch.Generator().manual_seed(1)
    outputs = [
        player.call(step, value(batch=2) + 0.2 * torch.randn(2, 3, 8, generator=generator), total=12)
        for step in range(12)
    ]
    return {
        "reasons": list(player.reasons().values()),
        "metrics": [event.metric for event in player.cache.events],
        "output": torch.stack(outputs).flatten().tolist(),
        "fused": player.cache.counters.counts.get("fused_comparisons", 0),
    }


def main() -> None:
    sizes = itertools.product((torch.float32, torch.float16), (1, 2, 3), (1, 5, 700))
    modes = ((True, True), (True, False), (False, True))
    cases = [once(*case, *mode) for case in sizes for mode in modes]
    fused.why_not = lambda sample: ""  # the interpreter's tensors are on the CPU
    runs = {
        reference: [run(alone, reference) for alone in (True, False)]
        for reference in ("computed", "previous")
    }
    sys.stdout.write(json.dumps({"cases": cases, "runs": runs}))


if __name__ == "__main__":
    main()
