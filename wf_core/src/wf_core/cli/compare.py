"""``wf compare``: the plain run and the accelerated run side by side, one request or a sweep of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from wf_core.cli.machine import CALL, call_options
from wf_core.cli.numbers import SEED
from wf_core.cli.output import print_json
from wf_core.cli.settings import (
    check_text,
    collect_settings,
    model_defaults,
    read_json_object,
    settings_options,
    with_defaults,
)
from wf_core.errors import BadInput, Refused
from wf_core.manifests.vocabulary import SCHEMA

if TYPE_CHECKING:
    from wf_core.comparing.batches import Batch
    from wf_core.comparing.outcome import Comparison
    from wf_core.comparing.runs import Bench
    from wf_core.comparing.sweep import Setting, Skipped
    from wf_core.host import Host

PAGE, SHEET, RECORD, PLOT = "index.html", "contact-sheet.png", "comparison.json", "frontier.svg"
FPS = 16.0


@attrs.frozen(eq=False)
class Task:
    """What the options say, checked: no weight has been read for it."""

    host: Host
    model: str
    request: Mapping[str, Any]
    call: Mapping[str, Any]
    defaults: Mapping[str, Any]
    dtype: str
    device: str
    batches: Sequence[Batch]
    out: Path | None

    @property
    def facts(self) -> dict[str, Any]:
        """What resolving is told beside the model and the call."""
        return {"device.type": self.device.partition(":")[0]}

    def bench(self) -> Bench:
        """The model, loaded."""
        from wf_core.checkpoints import load_quietly
        from wf_core.comparing.runs import Bench

        pipe = load_quietly(self.host.model_directory(self.model), self.dtype, self.device)
        return Bench(self.host, pipe, self.call)

    def place(self) -> dict[str, str]:
        """Where a row of a table was measured."""
        import torch

        name = torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else self.device
        model = str(self.host.facts(self.model).get("model.id") or self.model)
        return {"model": model, "device": name, "dtype": self.dtype}


@click.command("compare")
@click.argument("model")
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    help="What a clip shows; may be repeated. Default: the model's calibration prompts.",
)
@settings_options
@call_options
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the first prompt's noise.")
@click.option(
    "--dtype", default=None, help="float32, bfloat16 or float16; the model's own default if not given."
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1 ...")
@click.option(
    "--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Prompts in one call."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="A folder for the page, clips and sheet."
)
@click.option("--sweep", is_flag=True, help="Compare every setting that the feature caches declare.")
@click.option("--feature", "features", multiple=True, help="Sweep only this feature; may be repeated.")
@click.option(
    "--table", type=click.Path(path_type=Path), default=None, help="A JSON table that the sweep adds to."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    model: str,
    prompts: tuple[str, ...],
    settings: tuple[str, ...],
    load_json: Path | None,
    call: dict[str, Any],
    seed: int,
    dtype: str | None,
    device: str,
    batch: int,
    out: Path | None,
    sweep: bool,
    features: tuple[str, ...],
    table: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL plainly and with a request, from the same seeds, and tell what was saved and what was lost.

    Everything is checked before a weight is read. With --sweep the request stands beside each setting that is tried.
    """
    from wf_core.checkpoints import check_device_name, check_dtype
    from wf_core.comparing.batches import batches
    from wf_core.comparing.requirements import require_libraries
    from wf_core.host import Host

    check_device_name(device)
    for prompt in prompts:
        check_text("--prompt", prompt)
    check_outputs(out, sweep, features, table)
    require_libraries()
    host = Host.discover(env=True)
    request = collect_settings(settings, load_json)
    defaults = model_defaults(host, model)
    prompts = prompts or tuple(defaults.get("calibration_prompts", ()))
    if not prompts:
        raise BadInput(f"{model} declares no calibration prompts; give at least one with --prompt")
    known = with_defaults(dict.fromkeys(CALL) | call, defaults)
    dtype = check_dtype(dtype or str(defaults.get("dtype", "float32")))
    task = Task(host, model, request, known, defaults, dtype, device, batches(prompts, batch, seed), out)
    if sweep:
        compare_settings(task, features, table, as_json)
    else:
        compare_request(task, as_json)


def check_outputs(out: Path | None, sweep: bool, features: Sequence[str], table: Path | None) -> None:
    """Refuse options that would be ignored, and files that cannot be written; leaves nothing behind."""
    from wf_core.media import check_output_path, require_writers

    if not sweep and (features or table):
        raise BadInput("--feature and --table belong to --sweep")
    if out is not None:
        for name in (PAGE, RECORD, PLOT) if sweep else (PAGE, RECORD, SHEET):
            check_output_path(out / name)
        if not sweep:
            require_writers()
    if table is not None:
        if table.suffix.lower() == ".svg":
            raise BadInput(f"--table {table}: the plot is written beside the table, under this name")
        ours = {os.path.realpath(out / name) for name in (PAGE, RECORD, PLOT)} if out is not None else set()
        for path in (table, table.with_suffix(".svg")):
            if os.path.realpath(path) in ours:
                raise BadInput(f"--table {table}: --out writes another file to {path}")
            check_output_path(path)


# --- one request -------------------------------------------------------------------------------------------------


def compare_request(task: Task, as_json: bool) -> None:
    """Judge, run both, write and show."""
    from wf_core.resolving.rejudging import not_activatable, refuse

    plan = task.host.resolve(task.model, task.request, run=task.call, facts=task.facts)
    refuse(plan, not_activatable(plan))

    from wf_core.comparing.compare import compare
    from wf_core.comparing.page import page
    from wf_core.comparing.pictures import Pictures
    from wf_core.media import write_text
    from wf_core.values import json_text

    pictures = None if task.out is None else Pictures(task.out, float(task.defaults.get("fps", FPS)))
    scorer = task.host.prompt_scorer(task.model)
    keep = pictures.keep if pictures is not None else None
    found = compare(task.bench(), plan, task.batches, scorer=scorer, keep=keep)
    answer = {"schema": SCHEMA, **found.to_json()}
    written: dict[str, str] = {}
    if task.out is not None and pictures is not None:
        written = {
            name: str(task.out / file)
            for name, file in (("page", PAGE), ("contact_sheet", SHEET), ("record", RECORD))
        }
        pictures.write_sheet(task.out / SHEET)
        write_text(page(f"wf compare {task.model}", [found], pairs=pictures.pairs), task.out / PAGE)
        write_text(json_text(answer, indent=2) + "\n", task.out / RECORD)
    if as_json:
        print_json({**answer, "written": written})
    else:
        from wf_core.cli.compare_text import print_comparison

        print_comparison(found)
        print_written(written)


# --- a sweep -----------------------------------------------------------------------------------------------------


def compare_settings(task: Task, features: Sequence[str], table: Path | None, as_json: bool) -> None:
    """Judge every setting, run those that are legal on one loaded model, write the table and the plot, show."""
    from wf_core.comparing.sweep import best_of, merge_rows, row_of, settings

    old = old_rows(table)
    chosen, skipped = settings(task.host, task.model, task.request, features, run=task.call, facts=task.facts)

    from wf_core.comparing.compare import compare_all

    scorer = task.host.prompt_scorer(task.model)
    found = compare_all(task.bench(), [one.plan for one in chosen], task.batches, scorer=scorer)
    done, failed = sorted_out(chosen, found)
    place = task.place()
    rows = [row_of(setting.feature, comparison, place) for setting, comparison in done]
    everything = merge_rows(old, rows)
    best = best_of(everything, place, task.defaults)
    written = write_sweep(task, table, [one for _, one in done], rows, {"best": best, "rows": everything})
    skipped = [*skipped, *failed]
    if as_json:
        answer = {"schema": SCHEMA, "best": best, "rows": rows, "skipped": [one.to_json() for one in skipped]}
        print_json({**answer, "written": written})
    else:
        from wf_core.cli.compare_text import print_sweep

        print_sweep(rows, best, skipped)
        print_written(written)


def old_rows(table: Path | None) -> list[Mapping[str, Any]]:
    """The rows of a table that is there already."""
    from wf_core.comparing.sweep import check_table

    if table is None or not table.exists():
        return []
    try:
        return check_table(read_json_object(table))
    except BadInput as error:
        raise BadInput(f"--table {table}: {error}") from None


def sorted_out(
    chosen: Sequence[Setting], found: Sequence[Comparison | Exception]
) -> tuple[list[tuple[Setting, Comparison]], list[Skipped]]:
    """The settings that ran, and those that could not; `BadInput` where that is all of them."""
    from wf_core.comparing.sweep import Skipped, first_reason

    done: list[tuple[Setting, Comparison]] = []
    failed = []
    for setting, result in zip(chosen, found, strict=True):
        if isinstance(result, Exception):
            reason = first_reason(result) if isinstance(result, Refused) else str(result)
            failed.append(Skipped(setting.feature, setting.plan.request_dict(), reason))
        else:
            done.append((setting, result))
    if not done:
        raise BadInput(f"no setting of the sweep could be run: {failed[0].feature}: {failed[0].reason}")
    return done, failed


def write_sweep(
    task: Task,
    table: Path | None,
    comparisons: Sequence[Comparison],
    rows: Sequence[Mapping[str, Any]],
    whole: Mapping[str, Any],
) -> dict[str, str]:
    """Table, plot, page and record, as far as they were asked for; the paths written, by what they are.

    The plot beside the table shows the rows of the table at this model, device, dtype, steps and guidance.
    """
    from wf_core.comparing.page import page
    from wf_core.comparing.plot import frontier_svg
    from wf_core.comparing.sweep import alike
    from wf_core.media import write_text
    from wf_core.values import json_text

    written: dict[str, str] = {}
    if table is not None:
        write_text(json_text(whole, indent=1) + "\n", table)
        write_text(frontier_svg(alike(whole["rows"], rows[0])), table.with_suffix(".svg"))
        written |= {"table": str(table), "plot": str(table.with_suffix(".svg"))}
    if task.out is not None:
        plot = frontier_svg(rows)
        write_text(plot, task.out / PLOT)
        write_text(page(f"wf compare {task.model} --sweep", comparisons, plot=plot), task.out / PAGE)
        record = {"schema": SCHEMA, "comparisons": [one.to_json() for one in comparisons]}
        write_text(json_text(record, indent=2) + "\n", task.out / RECORD)
        paths = {"page": PAGE, "frontier": PLOT, "record": RECORD}
        written |= {name: str(task.out / file) for name, file in paths.items()}
    return written


def print_written(written: Mapping[str, str]) -> None:
    """Where things are."""
    for what, path in written.items():
        click.echo(f"{what.replace('_', ' ')}: {path}")
