"""``wf resolve MODEL``: judge a request for a model, without weights, without CUDA and without plugin code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wf_core.cli.machine import Machine, call_options, machine_options
from wf_core.cli.output import print_json
from wf_core.cli.settings import call_defaults, collect_settings, parse_settings, settings_options
from wf_core.errors import BadInput, Refused
from wf_core.manifests.vocabulary import GOALS, SCHEMA
from wf_core.resolving.request_keys import differ


@click.command("resolve")
@click.argument("model")
@settings_options
@click.option(
    "--goal", type=click.Choice(GOALS), default=None, help="Let the host add features to the request."
)
@machine_options
@click.option("--run", "run_settings", multiple=True, metavar="KEY=VALUE", help="An argument of the call.")
@call_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    model: str,
    settings: tuple[str, ...],
    load_json: Path | None,
    goal: str | None,
    machine: Machine,
    run_settings: tuple[str, ...],
    call: dict[str, Any],
    as_json: bool,
) -> int:
    """Judge a request for MODEL: a checkpoint directory, a registered name or profile, or any id with --family.

    Exit code 0: legal, 2: refused.
    """
    from wf_core.host import Host

    run = parse_settings(run_settings)
    for name, value in call.items():
        if differ(run.setdefault(name, value), value):
            raise BadInput(f"{name} is set twice: {run[name]} and {value}")
    request = collect_settings(settings, load_json)
    if goal is not None:
        if "goal" in request and request["goal"] != goal:
            raise BadInput(f"goal is set twice: {request['goal']} and {goal}")
        request["goal"] = goal
    host = Host.discover(env=True)
    try:
        plan = host.resolve(model, request, run={**call_defaults(host, model), **run}, **machine.arguments())
    except Refused as refused:
        return _refused(refused, as_json)
    if as_json:
        warnings = [warning.to_json() for warning in plan.warnings]
        print_json(
            {
                "schema": SCHEMA,
                "legal": True,
                "plan": plan.to_json(),
                "unknown": list(plan.unknown()),
                "warnings": warnings,
                "not_activatable": list(plan.not_activatable),
            }
        )
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
