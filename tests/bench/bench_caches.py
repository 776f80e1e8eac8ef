"""Every feature cache of this repository at several settings, and the same work by diffusers and cache-dit.

    python tests/bench/bench_caches.py --device cuda --batch 64 --steps 30 50 --table docs/caches.json

All runs are of one process, one model, the same prompts and seeds. A peer runs on a deep copy of the pipeline, since
it patches what it is put on. ``peers`` in the table are rows like ours, with ``like`` naming our feature of the same
algorithm. A run of `wf compare --sweep` adds to the same table.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attrs
import torch
from cache_peers import block_taylor, counting_blocks, dbcache, first_block, mag, taylor

from wf_core import Host
from wf_core.checkpoints import load_quietly
from wf_core.comparing.batches import Batch, batches
from wf_core.comparing.measures import Measures, measure
from wf_core.comparing.outcome import Comparison, Row, Side
from wf_core.comparing.runs import Bench, Output
from wf_core.comparing.sweep import (
    PLACE,
    Setting,
    Skipped,
    best_of,
    first_reason,
    merge_rows,
    row_of,
    settings,
)
from wf_core.errors import Refused

COLOURS = ("red", "green", "blue", "yellow", "white", "cyan", "magenta")
DIRECTIONS = ("left", "right", "up", "down")


def peers(ratios: Sequence[float], steps: int) -> dict[str, tuple[str, Any]]:
    """Each peer's name, which of our features runs the same algorithm, and how it is turned on."""
    found: dict[str, tuple[str, Any]] = {}
    for threshold in (0.05, 0.1, 0.15):
        found[f"diffusers FirstBlockCache(threshold={threshold})"] = ("firstblock", first_block(threshold))
        found[f"cache-dit DBCache(F1B0, W4, threshold={threshold})"] = ("firstblock", dbcache(threshold))
    for threshold in (0.05, 0.1):
        found[f"cache-dit DBCache(F2B2, W4, threshold={threshold})"] = (
            "dualblock",
            dbcache(threshold, front=2, tail=2),
        )
        found[f"cache-dit DBCache(F1B0, W4, threshold={threshold}, TaylorSeer)"] = (
            "custom",
            dbcache(threshold, taylor=True),
        )
    if ratios:
        for threshold, most in ((0.12, 2), (0.24, 6)):
            turn_on = mag(threshold, most, ratios)
            found[f"diffusers MagCache(threshold={threshold}, K={most})"] = ("magcache", turn_on)
    for interval in (3, 4):
        found[f"diffusers TaylorSeer lite(interval={interval})"] = ("taylorseer", taylor(interval, 3))
        found[f"diffusers TaylorSeer branches(interval={interval})"] = (
            "blocktaylorseer",
            block_taylor(interval, 3),
        )
    return found


def prompts(count: int) -> list[str]:
    """Colour, digit and direction in turn, so that all of each occur."""
    return [
        f"a {COLOURS[i % len(COLOURS)]} {(i * 7 + i // 8) % 10} moving {DIRECTIONS[(i + i // 4) % 4]}"
        for i in range(count)
    ]


PAIRS: list[tuple[tuple[str, int], Output, Output, int]] = []
"""What is to be measured when every run is done: prompt and seed, the plain run, the other, and the clip's number."""


class Judge:
    """Measures clips after all runs, in forked processes: while something is timed, nothing else runs."""

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer
        self._scores: list[tuple[Any, Any]] = []

    def note(self, batch: Batch, plain: Output, other: Output) -> range:
        """The numbers of the rows to come."""
        start = len(PAIRS)
        PAIRS.extend(((prompt, batch.seed + i), plain, other, i) for i, prompt in enumerate(batch.prompts))
        scores = [
            self._scorer(batch.prompts, torch.from_numpy(output.clips))
            if self._scorer
            else [None] * len(batch.prompts)
            for output in (other, plain)
        ]
        self._scores += zip(*scores, strict=True)
        return range(start, len(PAIRS))

    def rows(self) -> list[Row]:
        """Every row."""
        with get_context("fork").Pool(os.cpu_count()) as pool:
            measures = pool.map(measure_pair, range(len(PAIRS)), chunksize=4)
        rows = [
            Row(*pair[0], found, *scores)
            for pair, found, scores in zip(PAIRS, measures, self._scores, strict=True)
        ]
        PAIRS.clear()
        self._scores.clear()
        return rows


def measure_pair(number: int) -> Measures:
    """One clip beside the plain one."""
    torch.set_num_threads(1)
    _, plain, other, i = PAIRS[number]
    pair = None if plain.latents is None or other.latents is None else (plain.latents[i], other.latents[i])
    return measure(plain.clips[i], other.clips[i], pair, {})


@attrs.define(eq=False)
class Found:
    """A comparison whose clips are still to be measured."""

    request: Mapping[str, Any]
    rows: list[int]
    plain: Side
    side: Side
    report: Any

    def with_rows(self, rows: Sequence[Row]) -> Comparison:
        """The comparison."""
        own = tuple(rows[number] for number in self.rows)
        return Comparison(self.request, own, self.plain, self.side, self.report)


def run_ours(bench: Bench, plan: Any, todo: Sequence[Batch], plains: Sequence[Output], judge: Judge) -> Found:
    """One plan over all batches."""
    found = Found(plan.request_dict(), [], Side(), Side(), None)
    for batch, plain in zip(todo, plains, strict=True):
        output = bench.accelerated(plan, batch)
        found.plain, found.side = found.plain.with_(plain), found.side.with_(output)
        found.report = found.report or output.report
        found.rows += judge.note(batch, plain, output)
    return found


def run_peer(
    bench: Bench, turn_on: Any, todo: Sequence[Batch], plains: Sequence[Output], judge: Judge
) -> Found:
    """A peer, on a copy of the pipeline."""
    pipe = copy.deepcopy(bench.pipe)
    pipe.set_progress_bar_config(disable=True)
    turn_on(pipe, int(bench.call["num_inference_steps"]))
    subject = Bench(bench.host, pipe, bench.call)
    found = Found({}, [], Side(), Side(), {})
    for batch, plain in zip(todo, plains, strict=True):
        subject.plain(batch, warm=True)  # a whole run to warm up: a peer knows its number of steps
        with counting_blocks(pipe.transformer) as ran:
            output = subject.plain(batch, warm=True)
        output = attrs.evolve(output, forwards=float(len(ran)))
        found.plain, found.side = found.plain.with_(plain), found.side.with_(output)
        found.rows += judge.note(batch, plain, output)
    return found


def peer_row(
    name: str, like: str, found: Comparison, place: Mapping[str, Any], call: Mapping[str, Any]
) -> Any:
    """A peer's row, with the keys of ours where both have a meaning."""
    numbers = found.numbers()
    del numbers["request"]
    known = {key: call.get(key) for key in ("num_inference_steps", "guidance_scale")}
    return {**place, **known, "peer": name, "like": like, **numbers, "prompts": len(found.rows)}


def asked(
    host: Host, model: str, requests: Sequence[Any], call: Any, facts: Any
) -> tuple[list[Setting], list[Skipped]]:
    """Requests as settings of the first feature that they turn on, and those that are refused."""
    chosen, skipped = [], []
    for request in requests:
        try:
            plan = host.resolve(model, request, run=call, facts=facts)
            chosen.append(Setting(plan.features[0].name, plan))
        except Refused as refused:
            skipped.append(Skipped("", request, first_reason(refused)))
    return chosen, skipped


def peer_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells two rows of peers apart."""
    return (row["peer"], *(row[name] for name in (*PLACE, "num_inference_steps")))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        psnr = "identical" if row["psnr"] is None else f"{row['psnr']:6.2f} {row['psnr_mean']:6.2f}"
        name = row.get("peer") or json.dumps(row["request"])
        steps = f"{row['steps_computed']:7.2f}/{row['steps_total']:<4}"
        print(
            f"{row['num_inference_steps']:3} {steps} x{row['speedup']:.2f} "
            f"psnr {psnr} ssim {row['ssim']:.4f} score {row['prompt_score']} ({row['plain_prompt_score']}) "
            f"{row.get('feature') or row.get('like')}: {name}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny-wan")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--count", type=int, default=64, help="prompts")
    parser.add_argument("--batch", type=int, default=64, help="prompts in one call")
    parser.add_argument("--steps", type=int, nargs="+", default=[30, 50])
    parser.add_argument("--feature", action="append", default=[], help="only these of ours")
    parser.add_argument(
        "--ratios", type=Path, help="a magcache preset, whose ratios diffusers' MagCache gets"
    )
    parser.add_argument("--peer", action="append", default=[], help="only peers whose name has this in it")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument(
        "--try",
        type=Path,
        nargs="+",
        dest="tried",
        default=[],
        help="JSON lists of requests, one for each of --steps, in place of the declared ones",
    )
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    host = Host.discover()
    defaults = dict(host.model(given.model).defaults)
    directory = host.model_directory(given.model)
    pipe = load_quietly(directory, given.dtype, given.device)
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else given.device
    place = {"model": given.model, "device": name, "dtype": given.dtype}
    scorer = host.prompt_scorer(given.model)
    judge = Judge(scorer)
    todo = batches(prompts(given.count), given.batch, 0)
    table: dict[str, Any] = {"best": None, "rows": [], "peers": []}
    if given.table is not None and given.table.exists():
        table |= json.loads(given.table.read_text())
    ratios = json.loads(given.ratios.read_text())["presets"][0]["ratios_cond"] if given.ratios else []
    for number, steps in enumerate(given.steps):
        keys = ("height", "width", "num_frames", "guidance_scale")
        call = {key: defaults[key] for key in keys} | {"num_inference_steps": steps}
        bench = Bench(host, pipe, call)
        facts = {"device.type": given.device.partition(":")[0]}
        if given.tried:
            chosen, skipped = asked(
                host, given.model, json.loads(given.tried[number].read_text()), call, facts
            )
        else:
            chosen, skipped = settings(host, given.model, {}, given.feature, run=call, facts=facts)
        for batch in todo:  # a whole run first: what is made once is made before anything is timed
            bench.plain(batch, warm=False)
        plains = [bench.plain(batch, warm=True) for batch in todo]
        ours = []
        for one in chosen:
            try:
                ours.append((one, run_ours(bench, one.plan, todo, plains, judge)))
            except Refused as refused:  # a schedule that a preset does not fit is refused when the run begins
                skipped.append(Skipped(one.feature, one.plan.request_dict(), first_reason(refused)))
        beside = [
            (title, like, run_peer(bench, turn_on, todo, plains, judge))
            for title, (like, turn_on) in ({} if given.no_peers else peers(ratios, steps)).items()
            if not given.peer or any(part in title for part in given.peer)
        ]
        print(f"{steps} steps: {len(ours) + len(beside)} settings ran", flush=True)
        measured = judge.rows()
        rows = [row_of(one.feature, found.with_rows(measured), place) for one, found in ours]
        told = [
            peer_row(title, like, found.with_rows(measured), place, call) for title, like, found in beside
        ]
        for one in skipped:
            print("skipped", one.to_json())
        show([*rows, *told])
        table["rows"] = merge_rows(table["rows"], rows)
        new = {peer_key(row) for row in told}
        table["peers"] = [*(row for row in table["peers"] if peer_key(row) not in new), *told]
        if given.table is not None:
            given.table.write_text(json.dumps(table, indent=1) + "\n")
    table["best"] = best_of(table["rows"], place, defaults)
    print("best", json.dumps(table["best"], indent=1))
    if given.table is not None:
        given.table.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
