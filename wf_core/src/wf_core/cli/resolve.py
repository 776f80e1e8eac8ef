"""``wf resolve MODEL``: judge a request for a model, without weights, without CUDA and without plugin code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from wf_core.catalog import Catalog
from wf_core.cli.output import print_json
from wf_core.cli.settings import collect_settings, parse_settings, settings_options
from wf_core.discovery import discover
from wf_core.errors import BadInput, Refused
from wf_core.facts import Facts
from wf_core.names import did_you_mean
from wf_core.vocabulary import SCHEMA


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
    from wf_core.resolve import resolve

    catalog = Catalog.of(discover())
    run = {**parse_settings(run_settings), **{key: value for key, value in call.items() if value is not None}}
    request = collect_settings(settings, load_json)
    facts, defaults = known_facts(catalog, model, family)
    try:
        plan = resolve(request, facts, catalog, run={**defaults, **run})
    except Refused as refused:
        return _refused(refused, as_json)
    if as_json:
        warnings = [warning.to_json() for warning in plan.warnings]
        result = {"schema": SCHEMA, "legal": True, "plan": plan.to_json(), "unknown": list(plan.unknown())}
        print_json({**result, "warnings": warnings, "not_activatable": []})
    else:
        click.echo(plan.explain())
    return 0


def known_facts(catalog: Catalog, model: str, family: str | None) -> tuple[Facts, Mapping[str, Any]]:
    """Facts about the model and this machine, and the call arguments that a registered model declares."""
    from wf_core.facts.device import device_facts
    from wf_core.facts.process import process_facts
    from wf_core.facts.run import RUN_OPTIONS

    declared = catalog.model(model)
    defaults = declared.defaults_dict() if declared is not None else {}
    facts = (
        _model_facts(catalog, model, family).merged(device_facts()).merged(process_facts(catalog.packages()))
    )
    return facts, {name: value for name, value in defaults.items() if name in RUN_OPTIONS}


def _model_facts(catalog: Catalog, model: str, family: str | None) -> Facts:
    from wf_core.facts.model import facts_from_directory, model_id

    declared = catalog.model(model)
    if declared is not None and declared.path:
        return facts_from_directory(catalog.model_directory(declared), catalog.manifests)
    if declared is not None:
        return Facts.of({"model.id": declared.name, "model.family": declared.family}, "manifest")
    if Path(model).is_dir():
        return facts_from_directory(model, catalog.manifests)
    if family is not None:
        return Facts.of({"model.id": model_id(model, ()), "model.family": family}, "--family")
    hint = did_you_mean(model, catalog.model_names(), "; give a checkpoint directory, or an id with --family")
    raise BadInput(f"no model {model!r}: neither a directory nor a registered name{hint}")


def _refused(refused: Refused, as_json: bool) -> int:
    if as_json:
        print_json(refused.refusal.to_json())
    click.echo(refused.refusal.explain() if not as_json else f"wf: {refused.refusal.one_line()}", err=True)
    return 2
