"""``wf why FEATURE [FEATURE]``: why a feature cannot be used, or why two cannot be used together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from wf_core.cli.machine import Machine, call_options, machine_options, processes
from wf_core.cli.output import print_json
from wf_core.cli.settings import call_defaults
from wf_core.resolving.plan import Violation, shown_request

if TYPE_CHECKING:
    from wf_core.resolving.why import Alone, Ground, Looked, Why

MARGIN = " " * 10
LONGEST = 110


@click.command("why")
@click.argument("names", nargs=-1, required=True, metavar="FEATURE [FEATURE]")
@click.option("--model", default=None, help="The model to judge for; see below for the one taken without it.")
@machine_options
@call_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    names: tuple[str, ...], model: str | None, machine: Machine, call: dict[str, Any], as_json: bool
) -> int:
    """Why FEATURE cannot be used, or why two cannot be used together.

    FEATURE is a feature's name, a switch, or a value such as flash3; - and _ are the same. It is judged by the
    smallest request that turns it on. Without --model the first model with a profile is taken, of the first family
    that supports what is asked about; families that can be opened come first. The answer says which. The
    WORLDFOUNDRY_* variables do not count.

    Exit code 0: legal, 2: refused.
    """
    from wf_core.host import Host
    from wf_core.resolving.matrix import WORLDS
    from wf_core.resolving.naming import any_model, find
    from wf_core.resolving.why import why

    if len(names) > 2:
        raise click.UsageError(f"one or two features, not {len(names)}")
    host = Host.discover()
    note = "" if model is not None else "taken: "
    arguments = machine.arguments()
    if model is None:
        chosen = any_model(names, host.catalog, machine.family)
        model, note = chosen.name, note + chosen.why
        arguments["family"] = chosen.family or machine.family
    run = {**call_defaults(host, model), **call}
    facts = host.facts(model, run, **arguments)
    family = facts.get("model.family") or ""
    worlds = {n: host.facts(model, run, **{**arguments, "world": n}) for n in WORLDS}
    answer = why(tuple(find(name, host.catalog, family) for name in names), facts, host.catalog, worlds)
    world = facts.get("process.world")
    if as_json:
        judged_for = {"model": model, "model_taken": note.removeprefix("taken: "), "device": machine.device}
        print_json({**answer.to_json(), **judged_for, "world": world})
    else:
        place = f"{model} on {machine.device}, {processes(world)}"
        click.echo("\n".join(lines(answer, f"{place}{f' ({note})' if note else ''}")))
    if answer.refusal is not None:
        click.echo(f"wf: {answer.refusal.one_line()}", err=True)
    return 0 if answer.legal else 2


def lines(answer: Why, judged_for: str) -> Iterator[str]:
    """The verdict first, then its grounds, then what to change."""
    names = " and ".join(feature.name for feature in answer.features)
    yield f"{names}: {_verdict(answer)}"
    yield f"  for {judged_for}"
    if answer.request is not None:
        yield f"  judged: {shown_request(sorted(answer.request.items()))}"
    if len(answer.features) == 2:
        yield "between them:"
        yield from _violations(answer.between)
        if not answer.between:
            yield "  nothing stands between them"
    for feature in answer.features:
        yield from _feature(feature, alone=len(answer.features) == 2)
    yield from _changes(answer)


def _verdict(answer: Why) -> str:
    words = {"legal": "legal", "untested": "legal, but untested", "refused": "refused"}
    idle = [
        f"{feature.name} cannot be activated: {feature.offer.declared_only}"
        for feature in answer.features
        if feature.offer is not None and feature.offer.declared_only
    ]
    return "; ".join([words[answer.state], *idle])


def _feature(feature: Alone, *, alone: bool) -> Iterator[str]:
    offer = feature.offer
    if offer is None:
        yield f"{feature.name} stands for one of: {', '.join(o.feature.name for o in feature.offers)}"
    else:
        about = f"{offer.feature.kind} of {offer.plugin}, {offer.feature.tier}"
        state = offer.state + (f": {offer.reason}" if offer.reason else "")
        yield f"{feature.name} ({about}); {state}" + (f"; alone {feature.state}" if alone else "")
    told = {ground.reason for ground in feature.grounds if ground.state == "unmet"}
    yield from _violations(v for v in feature.violations if v.reason not in told)
    open_grounds = [g for g in feature.grounds if g.state != "met"]
    met = list(dict.fromkeys(line for g in feature.grounds if g.state == "met" for line in _met(g)))
    for ground in sorted(open_grounds, key=lambda g: ("unmet", "unknown").index(g.state)):
        yield from _ground(ground)
    if not alone:
        yield from met
    elif met:
        count = sum(g.state == "met" for g in feature.grounds)
        yield f"  met     {count} condition{'' if count == 1 else 's'}"
    if offer is not None and not feature.grounds:
        yield "  it has no conditions"


def _met(ground: Ground) -> Iterator[str]:
    yield f"  met     {ground.asks}: {'; '.join(_shown(item) for item in ground.looked_at)}"


def _ground(ground: Ground) -> Iterator[str]:
    yield f"  {ground.state.ljust(7)} {ground.code}  {ground.reason}"
    yield f"{MARGIN}asks: {ground.asks}"
    yield f"{MARGIN}{'; '.join(_shown(item) for item in ground.looked_at)}"


def _shown(item: Looked) -> str:
    text = str(item)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({item.source})"


def _violations(violations: Iterable[Violation]) -> Iterator[str]:
    for violation in violations:
        level = "refused" if violation.level == "forbid" else violation.level
        yield f"  {level.ljust(7)} {violation.code}  {violation.reason}"
        yield from (f"{MARGIN}{chain}" for chain in violation.chains)
        if violation.fix and not violation.chains:
            yield f"{MARGIN}{violation.fix}"


def _changes(answer: Why) -> Iterator[str]:
    if answer.refusal is None:
        return
    single = [fix for fix in answer.refusal.fixes if fix.single]
    if answer.needs_world is not None:
        yield f"with {answer.needs_world} processes it is legal (--world {answer.needs_world})"
    if single:
        yield "what to change (any one of these makes it legal):"
        yield from (f"  {fix.change}" for fix in single)
    elif answer.refusal.nearest is not None:
        yield "what to change, all of it:"
        yield f"  {answer.refusal.nearest}"
    elif answer.request is None:
        yield "each of them is refused alone already"
    else:
        yield "no request is legal here: see the reasons about the model, its family or the call"
