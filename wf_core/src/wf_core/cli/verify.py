"""``wf verify KIND``: what plugins compute here, measured against float64."""

from __future__ import annotations

import click

from wf_core.cli.numbers import SEED
from wf_core.cli.output import print_json

KINDS = ("attention",)
DTYPES = ("float32", "bfloat16", "float16")


@click.command("verify")
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "--backend", "backends", multiple=True, metavar="NAME", help="Only this backend; may be repeated."
)
@click.option("--device", default="", help="cpu, cuda, cuda:1 ...; this machine's if not given.")
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice(DTYPES),
    multiple=True,
    help="Only this dtype; may be repeated. Default: all three.",
)
@click.option(
    "--inputs",
    type=click.IntRange(min=1, max=100_000),
    default=100,
    show_default=True,
    help="Random inputs for each backend and dtype, spread over the shapes.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the first input.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    kind: str,
    backends: tuple[str, ...],
    device: str,
    dtypes: tuple[str, ...],
    inputs: int,
    seed: int,
    as_json: bool,
) -> int:
    """Check every attention backend that can run here against float64, on many shapes, masks and layouts.

    Exit code 0: all that ran are within their bound; 2: one is not, or nothing could run.
    """
    from wf_core.checkpoints import check_device_name
    from wf_core.cli.verify_text import complaint, print_verification
    from wf_core.host import Host
    from wf_core.verifying.runs import verify_attention

    if device:
        check_device_name(device)
    host = Host.discover()
    found = verify_attention(host, backends, device, dtypes or DTYPES, inputs, seed)
    if as_json:
        print_json(found.to_json())
    else:
        print_verification(found)
    wrong = complaint(found)
    if wrong:
        click.echo(f"wf: {wrong}", err=True)
    return 2 if wrong else 0
