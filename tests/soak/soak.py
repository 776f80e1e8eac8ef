"""Many requests in one process: four threads, one tiny Wan pipeline, random legal plans, and nothing may grow.

    python tests/soak/soak.py --requests 300

Every output must equal the request's solo run, bit for bit. After a warm-up the threads stop at the end of each round
and the process is measured: live tensors, Python's own memory (tracemalloc), and resident memory. Exit code 1 if a
bound is broken. Linux only: resident memory is read from /proc.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""Set before the process starts: an arena of the allocator per thread would look like growth."""

THREADS, ROUND, PLANS, SEED = 4, 6, 16, 20261130
RSS_BOUND, PYTHON_BOUND = 20.0, 0.01
"""KiB of resident memory a request, and the share by which Python's memory may differ."""


class Soak:
    """The pipeline, a few plans, and what each gives alone. ``wrong`` collects what differs from it."""

    def __init__(self) -> None:
        import torch

        from support.plans import covering, random_requests, trials
        from wf_core import Host
        from wf_plugin_wan.trial import bench

        torch.set_num_threads(1)
        self.host = Host.discover()
        self.bench = bench()
        self.pipe = self.bench.pipeline()
        drawn = random_requests(self.host, self.pipe, SEED, shared=True)
        distinct = {
            json.dumps(request, sort_keys=True): request for request in itertools.islice(drawn, 4 * PLANS)
        }
        self.requests = covering(distinct.values(), PLANS, trials(self.host, self.pipe, shared=True))
        self.alone = [self.run(request)[0] for request in self.requests]
        self.wrong: list[str] = []

    def run(self, request: dict[str, Any]) -> tuple[Any, Any]:
        """One session with one run: its output (latents where the plan leaves the VAE alone) and its report."""
        with self.host.session(self.pipe, request) as session:
            at_the_vae = any(seam.startswith("vae") for f in session.plan.features for seam in f.seams)
            changes = {} if at_the_vae else dict(self.bench.latent)
            frames = session.pipe(**self.bench.arguments(**changes)).frames
        return frames, session.report

    def request(self, number: int) -> None:
        """One request of the soak, compared with its solo run."""
        import torch

        which = (number * 7 + number // PLANS) % len(self.requests)
        frames, report = self.run(self.requests[which])
        states = {name: claim["state"] for name, claim in report["effective"].items()}
        if not torch.equal(frames, self.alone[which]):
            self.wrong.append(f"request {number}, {self.requests[which]}: another output than alone")
        if report.get("unattributed") or any(state != "effective" for state in states.values()):
            self.wrong.append(
                f"request {number}, {self.requests[which]}: {states}, {report.get('unattributed')}"
            )

    def rounds(self, requests: int) -> Iterator[dict[str, int]]:
        """Runs that many requests; after each round, with all threads at rest, the process is measured."""
        with ThreadPoolExecutor(THREADS) as pool:
            for start in range(0, requests, ROUND):
                for _ in pool.map(self.request, range(start, min(start + ROUND, requests))):
                    pass
                yield measure()


def measure() -> dict[str, int]:
    """Live tensors, bytes of Python's allocator, resident bytes, threads."""
    import torch

    gc.collect()
    tensors = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "tensors": tensors,
        "python": tracemalloc.get_traced_memory()[0],
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": threading.active_count(),
    }


def slope(values: list[int]) -> float:
    """Least squares, by index."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    above = sum((index - middle) * (value - mean) for index, value in enumerate(values))
    return above / sum((index - middle) ** 2 for index in range(len(values)))


def soak(requests: int, warm_up: int) -> dict[str, Any]:
    """The numbers of one soak, and ``broken``: what is not as it must be, in words."""
    made = Soak()
    for _ in made.rounds(warm_up):
        pass
    started = time.perf_counter()
    seen = list(made.rounds(requests))
    seconds = time.perf_counter() - started
    first, last = seen[0], seen[-1]
    growth = slope([one["resident"] for one in seen]) / ROUND / 1024
    python = last["python"] / first["python"] - 1
    broken = made.wrong[:5]
    if {one["tensors"] for one in seen} != {first["tensors"]}:
        broken.append(f"live tensors: {[one['tensors'] for one in seen]}")
    if abs(python) > PYTHON_BOUND:
        broken.append(f"Python's memory changed by {python:+.2%}")
    if growth > RSS_BOUND:
        broken.append(f"resident memory grows by {growth:.1f} KiB a request")
    return {
        "requests": requests,
        "plans": len(made.requests),
        "threads": THREADS,
        "different_outputs": len(made.wrong),
        "tensors": [first["tensors"], last["tensors"]],
        "python_mib": [round(one["python"] / 2**20, 2) for one in (first, last)],
        "python_change": round(python, 5),
        "resident_mib": [round(one["resident"] / 2**20, 1) for one in (first, last)],
        "resident_kib_a_request": round(growth, 2),
        "seconds": round(seconds, 1),
        "broken": broken,
    }


def table(told: dict[str, Any]) -> str:
    """The numbers as lines."""
    rows = [
        ("requests", f"{told['requests']} over {told['plans']} plans in {told['threads']} threads", ""),
        ("outputs unlike the solo run", told["different_outputs"], "0"),
        ("live tensors, first and last round", "{} {}".format(*told["tensors"]), "equal"),
        ("Python's memory, MiB", "{} {}".format(*told["python_mib"]), "within 1 %"),
        ("resident memory, MiB", "{} {}".format(*told["resident_mib"]), ""),
        ("resident memory, KiB a request", told["resident_kib_a_request"], f"below {RSS_BOUND:g}"),
        ("seconds", told["seconds"], ""),
    ]
    return "\n".join(f"{what:36} {seen!s:32} {bound}".rstrip() for what, seen, bound in rows)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=96)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    tracemalloc.start()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    told = soak(given.requests, given.warm_up)
    print(json.dumps(told) if given.json else table(told))
    for line in told["broken"]:
        print(f"broken: {line}", file=sys.stderr)
    return 1 if told["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
