"""``wf check PLUGIN``: every check of the conformance kit on an installed plugin."""

from __future__ import annotations

import click

from wf_core.cli.output import print_json, print_table
from wf_core.errors import BadInput
from wf_core.manifests.vocabulary import SCHEMA


@click.command("check")
@click.argument("plugin")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(plugin: str, as_json: bool) -> int:
    """Check an installed PLUGIN: its manifest, and, where it is implemented, its code on tiny models.

    Exit code 0: it conforms; 2: it does not, or it is only declared.
    """
    from wf_core.plugins.discovery import discover
    from wf_core.testing.examination import examine, families_beside, implemented

    discovery = discover()
    record = discovery.plugin(plugin)
    if record is None:
        raise BadInput(f"no plugin {plugin!r} is installed{discovery.suggestion(plugin)}")
    if record.state != "available":
        raise BadInput(f"the plugin {record.name} is {record.state}: {record.reason}")
    families = [
        other for other in discovery.plugins if other.state == "available" and other.kind == "model-family"
    ]
    results = list(examine(record, families_beside(families)))
    failed = [result for result in results if result.state == "failed"]
    ready = implemented(record)
    conforms = ready and not failed
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "plugin": record.name,
                "version": record.version,
                "implemented": ready,
                "conforms": conforms,
                "checks": [result.to_json() for result in results],
            }
        )
    else:
        rows = [[r.check.name.replace("_", " "), r.subject, r.state, r.message] for r in results]
        print_table(["check", "of", "", "what was seen"], rows)
        passed = sum(result.state == "passed" for result in results)
        click.echo(f"{record.name} {record.version}: {passed} passed, {len(failed)} failed of {len(results)}")
    if not ready:
        click.echo(f"wf: {record.name} is not implemented: only its manifest was checked", err=True)
    elif failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        click.echo(
            f"wf: {record.name} does not conform: {failed[0].check.name}: {failed[0].message}{more}", err=True
        )
    return 0 if conforms else 2
