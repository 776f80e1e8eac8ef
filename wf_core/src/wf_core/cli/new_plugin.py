"""``wf new-plugin NAME``: a complete distribution for a plugin of one kind, that works as it is written."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from wf_core.cli.output import print_json
from wf_core.errors import BadInput
from wf_core.manifests.vocabulary import SCHEMA
from wf_core.names import normalise
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.templates.distribution import KINDS, check, write


@click.command("new-plugin")
@click.argument("name")
@click.option("--kind", required=True, help=f"What it is: {', '.join(KINDS)}.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The folder to make it in; here, unless given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(name: str, kind: str, out: Path, as_json: bool) -> None:
    """Write wf-plugin-NAME: project file, manifest, code that works, conformance tests.

    NAME is lower-case words with hyphens. Nothing is installed, and nothing is written over.
    """
    plugin = check(name, kind)
    meant = other_meaning(Catalog.of(discover(environ={})), name)
    if meant:
        raise BadInput(f"the name {name!r} is already {meant}: choose another")
    folder = write(plugin, out)
    files = list(plugin.files())
    steps = [f"cd {shlex.quote(str(folder))}", "pip install -e '.[test]'", "pytest", f"wf show {name}"]
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "name": name,
                "kind": kind,
                "distribution": plugin.distribution,
                "package": plugin.package,
                "path": str(folder),
                "files": files,
                "next": steps,
            }
        )
        return
    for file in files:
        click.echo(folder / file)
    click.echo("\nNext (LICENSE is MIT and waits for a year and an author):")
    for step in steps:
        click.echo(f"  {step}")


def other_meaning(catalog: Catalog, name: str) -> str:
    """What a name means on this machine already, as a plugin, a feature, a value or a request key; "" for nothing."""
    if name == "toy":
        return "the model family of the conformance tests"
    for record in catalog.records:
        if record.name == name:
            return f"the plugin {name} of {record.distribution}"
    for offer in catalog.features():
        values = (word for select in offer.feature.selects for word in (*select.values, *select.groups))
        if name in map(normalise, (offer.feature.name, *values)):
            return f"the feature {offer.feature.name} of {offer.record.distribution}, or a value that asks for it"
    if name in map(normalise, catalog.keys()):
        return f"a request key: wf show {name}"
    if name in (*catalog.family_names(), *map(normalise, catalog.model_names())):
        return f"a model or a model family: wf show {name}"
    off = {word for selector in catalog.selectors.values() for word in selector.off}
    return "a value that turns something off" if name in {*off, "true", "false", "null"} else ""
