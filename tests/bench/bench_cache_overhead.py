"""What a cache costs at a step that it computes: a run in which nothing is skipped, beside the stock pipeline's.

    python tests/bench/bench_cache_overhead.py [--json FILE]

On tiny-wan, denoising only, on the GPU where there is one. Both run in turns, and the quickest of each counts.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from table import Row, show, side_by_side

from wf_core import Host
from wf_core.checkpoints import load_quietly

STEPS, REPEAT = 6, 6
NEVER: dict[str, dict[str, Any]] = {
    "teacache": {"teacache": {"coefficients": [1.0, 0.0], "threshold": 0.0}},
    "custom": {"feature_cache": {"algorithm": "custom", "coefficients": [1.0, 0.0], "threshold": 0.0}},
    "magcache": {"magcache": {"threshold": 0.0}},
    "adacache": {"adacache": {"thresholds": [1.0], "rates": [1]}},
    "taylorseer": {"taylorseer": {"interval": 1}},
    "blocktaylorseer": {"feature_cache": {"algorithm": "blocktaylorseer", "pattern": [True]}},
    "firstblock": {"feature_cache": {"algorithm": "firstblock", "residual_diff_threshold": 0.0}},
    "dynamicblock": {"feature_cache": {"algorithm": "dynamicblock", "residual_diff_threshold": 0.0}},
    "easycache": {"feature_cache": {"algorithm": "easycache", "threshold": 0.0, "first": 1}},
}
TARGET = 1.01
"""The most that a dense step with a cache may take of one without, from the issue; the caches that watch every block or
branch are shown beside it without one."""
EVERY_BLOCK = ("blocktaylorseer", "dynamicblock")


def main() -> None:
    device, batch = ("cuda", 16) if torch.cuda.is_available() else ("cpu", 1)
    warnings.filterwarnings("ignore")
    host = Host.discover()
    pipe = load_quietly(host.model_directory("tiny-wan"), "float32", device)
    call = {
        "prompt": ["a red 3 moving left"] * batch,
        "height": 128,
        "width": 128,
        "num_frames": 17,
        "guidance_scale": 3.0,
        "num_inference_steps": STEPS,
        "output_type": "latent",
    }

    def run(subject: Any) -> None:
        subject(**call, generator=torch.Generator().manual_seed(1))
        if device != "cpu":
            torch.accelerator.synchronize()

    rows = []
    for name, request in NEVER.items():
        with host.session(pipe, request) as session:
            stock, ours = side_by_side([partial(run, pipe), partial(run, session.pipe)], REPEAT, pick=min)
            forwards = session.report["steps"]["forwards"]
            assert forwards["computed"] == forwards["called"], (name, forwards)
        target = None if name in EVERY_BLOCK else TARGET
        rows.append(Row(f"{name}: dense run over the stock pipeline's", ours / stock, "x", target))
    show("A cache installed, and nothing skipped", rows, f"tiny-wan on {device}, batch {batch}, float32")


if __name__ == "__main__":
    main()
