"""``wf run``: a clip from a prompt through a session, and the report of what took effect."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wf_core.cli.numbers import FPS, SEED
from wf_core.cli.output import print_json
from wf_core.cli.settings import (
    check_text,
    collect_settings,
    model_defaults,
    read_json_object,
    settings_options,
    with_defaults,
)
from wf_core.errors import BadInput
from wf_core.manifests.vocabulary import SCHEMA

if TYPE_CHECKING:
    from wf_core.host import Host


@click.command("run")
@click.argument("model")
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    default=None,
    help="A plan as `wf resolve --json` prints it, in place of a request.",
)
@click.option("--prompt", required=True, help="What the clip shows.")
@click.option("--negative-prompt", default=None, help="What it should not show.")
@settings_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The clip: .mp4 or .gif.")
@click.option(
    "--report", "report_path", type=click.Path(path_type=Path), default=None, help="The report, as JSON."
)
@click.option("--height", type=int, default=None, help="Pixels.")
@click.option("--width", type=int, default=None, help="Pixels.")
@click.option("--frames", "num_frames", type=int, default=None, help="Frames of the clip.")
@click.option("--steps", "num_inference_steps", type=int, default=None, help="Solver steps.")
@click.option(
    "--guidance", "guidance_scale", type=float, default=None, help="Guidance scale; 1 turns it off."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the starting noise.")
@click.option("--fps", type=FPS, default=None, help="Frames per second of the written clip.")
@click.option(
    "--dtype", default=None, help="float32, bfloat16 or float16; the model's own default if not given."
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1 ...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    model: str,
    prompt: str,
    negative_prompt: str | None,
    settings: tuple[str, ...],
    load_json: Path | None,
    plan_path: Path | None,
    out: Path,
    report_path: Path | None,
    seed: int,
    fps: float | None,
    dtype: str | None,
    device: str,
    as_json: bool,
    **call: Any,
) -> None:
    """Generate a clip with MODEL, a checkpoint directory or a registered name.

    The request, the paths and the sizes are checked before a weight is read. On a refusal nothing is written.
    """
    from wf_core.checkpoints import check_device_name, check_dtype
    from wf_core.host import Host
    from wf_core.resolving.rejudging import not_activatable, refuse

    check_device_name(device)
    check_text("--prompt", prompt)
    check_text("--negative-prompt", negative_prompt or "")
    check_outputs(out, report_path)
    host = Host.discover(env=True)
    request = collect_settings(settings, load_json)
    defaults = model_defaults(host, model)
    known = with_defaults(call, defaults)
    dtype = check_dtype(dtype or str(defaults.get("dtype", "float32")))
    if plan_path is not None:
        if request:
            raise BadInput(f"--plan {plan_path} is a request already decided: leave out -s and --load-json")
        plan = host.load_plan(read_json_object(plan_path))
    else:
        plan = host.resolve(model, request, run=known, facts={"device.type": device.partition(":")[0]})
    refuse(plan, not_activatable(plan))
    result = generate(
        host,
        model,
        plan,
        {**known, "prompt": prompt, "negative_prompt": negative_prompt},
        seed,
        dtype,
        device,
    )
    written = save(result, out, report_path, float(defaults.get("fps", 16)) if fps is None else fps)
    show(result, written, as_json)


def sheet_path(out: Path) -> Path:
    """Where the contact sheet of a clip goes: beside it."""
    return out.with_suffix(".png")


def check_outputs(out: Path, report_path: Path | None) -> None:
    """Refuse paths that cannot be written, or that overwrite each other; leaves nothing behind."""
    from wf_core.errors import BadInput
    from wf_core.media import check_clip_path, check_output_path, require_writers

    check_clip_path(out)
    check_output_path(sheet_path(out))
    if report_path is not None:
        check_output_path(report_path)
        if report_path.absolute() in (out.absolute(), sheet_path(out).absolute()):
            raise BadInput(
                f"--report {report_path} would overwrite the clip or its contact sheet; choose another name"
            )
    require_writers()


def generate(
    host: Host, model: str, plan: Any, call: Mapping[str, Any], seed: int, dtype: str, device: str
) -> dict[str, Any]:
    """Load, open a session, run once. Returns frames ``[F, H, W, 3]`` uint8, the report and the wall times."""
    import torch

    from wf_core.checkpoints import load_quietly
    from wf_core.media import as_uint8

    started = time.perf_counter()
    pipe = load_quietly(host.model_directory(model), dtype, device)
    loaded = time.perf_counter()
    with host.session(pipe, plan) as session:
        generator = torch.Generator("cpu").manual_seed(seed)
        video = session.pipe(**call, generator=generator, output_type="np").frames[0]
    seconds = {"load": loaded - started, "run": time.perf_counter() - loaded}
    return {"frames": as_uint8(video), "report": session.report, "seconds": seconds}


def save(result: Mapping[str, Any], out: Path, report_path: Path | None, fps: float) -> dict[str, str]:
    """Write clip, contact sheet and report; the paths written, by what they are."""
    from wf_core.media import write_clip, write_contact_sheet, write_text

    sheet = sheet_path(out)
    write_clip(result["frames"], out, fps)
    write_contact_sheet(result["frames"], sheet)
    written = {"clip": str(out), "contact_sheet": str(sheet)}
    if report_path is not None:
        write_text(result["report"].to_json(indent=2) + "\n", report_path)
        written["report"] = str(report_path)
    return written


def show(result: Mapping[str, Any], written: Mapping[str, str], as_json: bool) -> None:
    from wf_core.cli.report_table import print_report

    report, seconds = result["report"], {k: round(v, 3) for k, v in result["seconds"].items()}
    if as_json:
        print_json({"schema": SCHEMA, "written": dict(written), "seconds": seconds, "report": dict(report)})
        return
    print_report(report)
    for what, path in written.items():
        click.echo(f"{what.replace('_', ' ')}: {path}")
    click.echo(f"loaded in {seconds['load']:.1f} s, ran in {seconds['run']:.1f} s")
