"""What a cache costs at a step that it computes: denoising steps with nothing skipped, beside the stock pipeline's.

    python tests/bench/bench_cache_overhead.py [--json FILE]

On tiny-wan. Single steps are timed (two forwards and the sampler, from one callback to the next), all subjects in
turns, whose order shifts by one each time, and the quickest of each step counts; Python collects its garbage between
the rounds alone. What a session costs once per request is not in it (bench_session.py has that). The stock pipeline is
there twice, and what is divided by is the mean of both: the row that sets one against the other says how far the
machine itself can be trusted. With ``--batch`` clips at once: few do not keep a card busy, and then what is timed is
Python's way from one launch to the next.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
import warnings
from contextlib import ExitStack
from statistics import mean
from typing import Any

import torch
from table import Row, show

from wf_core import Host
from wf_core.checkpoints import load_quietly

ALWAYS = {"first": 1, "last": 0}
NEVER: dict[str, dict[str, Any]] = {
    "an empty session": {},
    "teacache": {"teacache": {"coefficients": [1.0, 0.0], "threshold": 0.0}},
    "custom": {"feature_cache": {"algorithm": "custom", "coefficients": [1.0, 0.0], "threshold": 0.0}},
    "magcache": {"magcache": {"threshold": 0.0}},
    "adacache": {"adacache": {"thresholds": [1.0], "rates": [1], "first": 1, "last": 0}},
    "taylorseer": {"taylorseer": {"interval": 1}},
    "blocktaylorseer": {"feature_cache": {"algorithm": "blocktaylorseer", "pattern": [True]}},
    "firstblock": {"feature_cache": {"algorithm": "firstblock", "residual_diff_threshold": 0.0, **ALWAYS}},
    "dynamicblock": {
        "feature_cache": {"algorithm": "dynamicblock", "residual_diff_threshold": 0.0, **ALWAYS}
    },
    "easycache": {"feature_cache": {"algorithm": "easycache", "threshold": 0.0, **ALWAYS}},
}
"""Requests that skip nothing; the dynamic ones measure and decide at every step that they can."""
STOCK, AGAIN = "stock", "stock, again"
TARGET = 1.01
"""The most that a dense step with a cache may take of one without."""
CALL: dict[str, Any] = {
    "height": 128,
    "width": 128,
    "num_frames": 17,
    "guidance_scale": 3.0,
    "output_type": "latent",
}


def step_times(pipe: Any, steps: int, batch: int) -> list[float]:
    """Seconds of each step after the first of one denoising run.

    On a card by events, which nobody waits for before the run is over: the host runs ahead, as it does without a clock.
    """
    on_device = pipe.transformer.device.type != "cpu"
    stamps: list[Any] = []

    def stamp(*_: object) -> dict[str, object]:
        if on_device:
            stamps.append(torch.cuda.Event(enable_timing=True))
            stamps[-1].record()
        else:
            stamps.append(time.perf_counter())
        return {}

    prompts = ["a red 3 moving left"] * batch
    generator = torch.Generator().manual_seed(1)
    pipe(prompts, **CALL, num_inference_steps=steps, generator=generator, callback_on_step_end=stamp)
    if on_device:
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(stamps)]
    return [after - before for before, after in itertools.pairwise(stamps)]


def measure(steps: int, rounds: int, batch: int, device: str) -> tuple[float, dict[str, float]]:
    """Milliseconds of a stock step, and each subject's ratio to it: of the means over the quickest of each step."""
    host = Host.discover()
    pipe = load_quietly(host.model_directory("tiny-wan"), "float32", device)
    with ExitStack() as stack:
        sessions = {name: stack.enter_context(host.session(pipe, request)) for name, request in NEVER.items()}
        subjects = {
            STOCK: pipe,
            **{name: session.pipe for name, session in sessions.items()},
            AGAIN: pipe,
        }
        names = list(subjects)
        quickest: dict[str, list[float]] = {}
        for turn in range(rounds + 1):
            gc.collect()
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                if device != "cpu":
                    torch.cuda.empty_cache()  # where tensors lie differs from round to round, and not between subjects
                times = step_times(subjects[name], steps, batch)
                if turn:  # the first round warms up
                    quickest[name] = list(map(min, quickest.get(name, times), times))
        for name, session in sessions.items():
            forwards = session.report["steps"]["forwards"]
            assert forwards["computed"] == forwards["called"], (name, forwards)
    taken = {name: mean(times) for name, times in quickest.items()}
    stock = mean([taken[STOCK], taken[AGAIN]])
    return 1000 * stock, {
        **{name: taken[name] / stock for name in NEVER},
        AGAIN: taken[AGAIN] / taken[STOCK],
    }


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--steps", type=int, default=9 if on_gpu else 4)
    parser.add_argument("--rounds", type=int, default=10 if on_gpu else 4)
    parser.add_argument("--batch", type=int, default=128 if on_gpu else 1)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    options, _ = parser.parse_known_args()
    warnings.filterwarnings("ignore")
    gc.disable()
    stock, ratios = measure(options.steps, options.rounds, options.batch, options.device)
    rows = [
        Row(f"{name}: a dense step over the stock pipeline's", ratios[name], "x", TARGET) for name in NEVER
    ]
    rows.append(Row("the stock pipeline, again", ratios[AGAIN], "x"))
    note = f"tiny-wan on {options.device}, batch {options.batch}, float32; a stock step took {stock:.2f} ms"
    show("A cache installed, and nothing skipped", rows, note)


if __name__ == "__main__":
    main()
