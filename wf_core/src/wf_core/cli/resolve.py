"""``wf resolve MODEL``: judge a request for a model, without weights, without CUDA and without plugin code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wf_core.cli.output import print_json
from wf_core.cli.settings import collect_settings, model_defaults, parse_settings, settings_options
from wf_core.errors import Refused
from wf_core.manifests.vocabulary import SCHEMA


@click.command("resolve")
@click.argument("model")
@settings_options
@click.option("--family", default=None, help="The model's family, when MODEL is only an id.")
@click.option("--run", "run_settings", multiple=True, metavar="KEY=VALUE", help="An argument of the call.")
@click.option("--height", type=int, default=None, help="Pixels.")
@click.option("--width", type=int, default=None, help="Pixels.")
@click.option("--frames", "num_frames", type=int, default=None, help="Frames of the clip.")
@click.option("--steps", "num_inference_steps", type=int, default=None, help="Denoising steps.")
@click.option("--guidance", "guidance_scale", type=float, default=None, help="Guidance scale.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    model: str,
    settings: tuple[str, ...],
    load_json: Path | None,
    family: str | None,
    run_settings: tuple[str, ...],
    as_json: bool,
    **call: Any,
) -> int:
    """Judge a request for MODEL: a checkpoint directory, a registered name, or any id with --family.

    Exit code 0: legal, 2: refused.
    """
    from wf_core.facts.run import RUN_OPTIONS
    from wf_core.host import Host

    run = {**parse_settings(run_settings), **{key: value for key, value in call.items() if value is not None}}
    request = collect_settings(settings, load_json)
    host = Host.discover()
    defaults = {key: item for key, item in model_defaults(host, model).items() if key in RUN_OPTIONS}
    try:
        plan = host.resolve(model, request, run={**defaults, **run}, family=family)
    except Refused as refused:
        return _refused(refused, as_json)
    if as_json:
        warnings = [warning.to_json() for warning in plan.warnings]
        result = {"schema": SCHEMA, "legal": True, "plan": plan.to_json(), "unknown": list(plan.unknown())}
        print_json({**result, "warnings": warnings})
    else:
        click.echo(plan.explain())
    return 0


def _refused(refused: Refused, as_json: bool) -> int:
    """The whole refusal on stdout, one line of it on stderr."""
    if as_json:
        print_json(refused.refusal.to_json())
    else:
        click.echo(refused.refusal.explain())
    click.echo(f"wf: {refused.refusal.one_line()}", err=True)
    return 2
