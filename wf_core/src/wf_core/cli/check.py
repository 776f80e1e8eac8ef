"""``wf check PLUGIN``: every check of the conformance kit on an installed plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from wf_core.cli.output import print_json
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
    from wf_core.testing.examination import implemented
    from wf_core.testing.examiner import examined

    discovery = discover()
    record = discovery.plugin(plugin)
    if record is None:
        raise BadInput(f"no plugin {plugin!r} is installed{discovery.suggestion(plugin)}")
    if record.state != "available":
        raise BadInput(f"the plugin {record.name} is {record.state}: {record.reason}")
    results = []
    for result in examined(record.name):
        results.append(result)
        if not as_json:
            _show(result)
    failed = [result for result in results if result["state"] == "failed"]
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
                "checks": results,
            }
        )
    else:
        passed = sum(result["state"] == "passed" for result in results)
        click.echo(f"{record.name} {record.version}: {passed} passed, {len(failed)} failed of {len(results)}")
    if not ready:
        click.echo(f"wf: {record.name} is not implemented: only its manifest was checked", err=True)
    elif failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        first = f"{failed[0]['check']}: {failed[0]['message']}"
        click.echo(f"wf: {record.name} does not conform: {first}{more}", err=True)
    return 0 if conforms else 2


def _show(result: Mapping[str, Any]) -> None:
    """One line as soon as it is known: a plugin of many features takes a while."""
    name = str(result["check"]).replace("_", " ")
    of = f" of {result['subject']}" if result["subject"] else ""
    message = f": {result['message']}" if result["message"] else ""
    click.echo(f"{result['state'].ljust(14)}  {name}{of}{message}")
