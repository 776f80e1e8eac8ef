"""What ``wf verify`` says to people: one table, then the reasons, then what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wf_core.cli.output import print_table
from wf_core.cli.wrapping import echo_entries

if TYPE_CHECKING:
    from wf_core.verifying.outcome import Finding, Verification

HEADERS = ("backend", "dtype", "tier", "verdict", "relative L2", "max abs", "inputs", "calls", "not served")


def print_verification(found: Verification) -> None:
    """Everything that was found, the worst calls and every reason with its count."""
    where = f" ({found.device_name})" if found.device_name else ""
    click.echo(f"attention on {found.device}{where}: {found.inputs} inputs each, seed {found.seed}")
    click.echo()
    print_table(HEADERS, [_row(finding) for finding in found.findings])
    click.echo()
    ran = [finding for finding in found.findings if finding.worst]
    echo_entries("worst calls, and the bound:", ((f.name, _worst(f)) for f in ran))
    echo_entries("not served:", ((f.name, _reasons(f)) for f in ran if f.ineligible))
    echo_entries("cannot run here:", ((f.name, f.why) for f in found.of("unavailable")))
    echo_entries("outside its bound:", ((f.name, f.why) for f in found.of("exceeds")))


def complaint(found: Verification) -> str:
    """The one line for stderr, "" where all is well. A verification of nothing is no proof of anything."""
    wrong = found.of("exceeds")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return f"{wrong[0].name}: {wrong[0].why}{more}"
    unavailable = found.of("unavailable")
    if len(unavailable) == len(found.findings):
        first = f"{unavailable[0].name}: {unavailable[0].why}" if unavailable else "no backend is installed"
        return f"nothing was verified: {first}"
    return ""


def _row(finding: Finding) -> list[str]:
    worst = finding.worst
    errors = [f"{worst[name].value:.2e}" if name in worst else "-" for name in ("relative-l2", "max-abs")]
    head = [finding.feature, finding.dtype or "-", finding.tier, finding.verdict]
    return [*head, *errors, str(finding.inputs), str(finding.calls), str(sum(finding.ineligible.values()))]


def _worst(finding: Finding) -> str:
    l2, far = finding.worst["relative-l2"], finding.worst["max-abs"]
    cosine = f"; cosine {finding.worst['cosine'].value:.7f}"
    return (
        f"relative L2 {l2.value:.3g} at {l2.at}; max abs {far.value:.3g} at {far.at}{cosine}; "
        f"bound: {' and '.join(finding.limits)}"
    )


def _reasons(finding: Finding) -> str:
    return "; ".join(f"{count} x {reason}" for reason, count in finding.ineligible.items())
