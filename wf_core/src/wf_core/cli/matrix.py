"""``wf matrix [MODEL]``: every pair of features for a model and a machine, as text, JSON or one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wf_core.cli.machine import Machine, call_options, machine_options
from wf_core.cli.output import print_json
from wf_core.cli.settings import call_defaults


@click.command("matrix")
@click.argument("model", required=False)
@machine_options
@call_options
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    default=None,
    help="Write one self-contained page to this file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    model: str | None, machine: Machine, call: dict[str, Any], html: Path | None, as_json: bool
) -> int:
    """Every pair of features for MODEL: legal, untested, or refused with its codes.

    Each feature is asked for by the smallest request that turns it on; features that can only be judged are judged like
    all others. Without MODEL the first model with a profile is taken, of the first family that can be opened. What is
    refused alone is told once: its pairs tell only what stands between the two.
    """
    from wf_core.cli.matrix_text import lines
    from wf_core.host import Host
    from wf_core.media import check_output_path, write_text
    from wf_core.resolving.matrix import WORLDS, build_matrix
    from wf_core.resolving.naming import any_model

    if html is not None:
        check_output_path(html)
    host = Host.discover()
    arguments = machine.arguments()
    if model is None:
        chosen = any_model((), host.catalog, machine.family)
        model, arguments["family"] = chosen.name, chosen.family or machine.family
    run = {**call_defaults(host, model), **call}
    facts = host.facts(model, run, **arguments)
    worlds = {number: host.facts(model, run, **{**arguments, "world": number}) for number in WORLDS}
    matrix = build_matrix(facts, host.catalog, model=model, device=machine.device, worlds=worlds)
    if html is not None:
        from wf_core.cli.matrix_page import page

        write_text(page(matrix), html)
    if as_json:
        print_json(matrix.to_json())
    elif html is not None:
        click.echo(f"wrote {html}: {len(matrix.features)} features, {len(matrix.pairs)} pairs")
    else:
        click.echo("\n".join(lines(matrix)))
    return 0
