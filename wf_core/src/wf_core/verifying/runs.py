"""The verification of attention providers: which, on what, and what each gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from wf_core.checkpoints import check_device, check_dtype
from wf_core.errors import BadInput, Ineligible
from wf_core.facts import Facts
from wf_core.facts.device import device_facts, with_machine
from wf_core.facts.process import process_facts
from wf_core.host import Host
from wf_core.names import did_you_mean, folded
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.verifying import cases
from wf_core.verifying.checks import empty_rows, errors, mask_problem, problem
from wf_core.verifying.limits import limits
from wf_core.verifying.outcome import Finding, Verification
from wf_core.verifying.provider import KIND, Candidate
from wf_core.verifying.reference import attention
from wf_core.verifying.tally import Tally

DTYPES = ("float32", "bfloat16", "float16")
Shown = Callable[[Finding], None]


def verify_attention(
    host: Host,
    backends: Sequence[str] = (),
    device: str = "",
    dtypes: Sequence[str] = DTYPES,
    inputs: int = 100,
    seed: int = 0,
    shown: Shown = lambda finding: None,
) -> Verification:
    """Every attention provider (or those of ``backends``) on ``inputs`` random calls per dtype, against float64.

    ``device`` "" is this machine's. ``shown`` gets each finding as soon as it is there. Raises ``BadInput`` for a
    backend that nobody offers and a device or dtype that cannot be used.
    """
    offers = named(host.catalog, backends)
    for dtype in dtypes:
        check_dtype(dtype)
    machine = device_facts().merged(process_facts(host.catalog.packages()))
    device = device or str(machine.get("device.type"))
    check_device(device)
    place = torch.device(device)
    machine = with_machine(Facts.of({"device.type": place.type}, "the device that is tried"), machine)
    findings = []
    for offer in offers:
        for finding in _findings(
            Candidate(host, offer, machine), tuple(dict.fromkeys(dtypes)), place, inputs, seed
        ):
            findings.append(finding)
            shown(finding)
    name = str(machine.get("device.name") or "")
    return Verification(device, name, tuple(dict.fromkeys(dtypes)), inputs, seed, tuple(findings))


def named(catalog: Catalog, names: Sequence[str]) -> tuple[Offer, ...]:
    """The attention providers that answer to any of the names: a feature's own, or a value of a selector that picks
    it, alone or among others (``flash``). All for no name. Raises ``BadInput`` for a name that nobody answers to.
    """
    offers = [offer for offer in catalog.features() if offer.feature.kind == KIND]
    if not names:
        return tuple(offers)
    answers = {offer: _names(offer) for offer in offers}
    known = {name for found in answers.values() for name in found}
    for name in names:
        if folded(name) not in known:
            raise BadInput(f"no attention backend {name!r}{did_you_mean(folded(name), known)}")
    wanted = {folded(name) for name in names}
    return tuple(offer for offer in offers if wanted & answers[offer])


def _names(offer: Offer) -> set[str]:
    selects = offer.feature.selects
    values = (name for select in selects for name in (*select.values, *select.groups))
    return {folded(name) for name in (offer.feature.name, *values)}


def _findings(
    candidate: Candidate, dtypes: Sequence[str], device: torch.device, inputs: int, seed: int
) -> Iterator[Finding]:
    offer = candidate.offer
    stands_against = offer.reason if offer.state != "available" else ""
    reasons = [stands_against or candidate.why_not(dtype) for dtype in dtypes]
    if len(set(reasons)) == 1 and reasons[0]:
        yield _finding(offer, "unavailable", reasons[0])
        return
    for dtype, reason in zip(dtypes, reasons, strict=True):
        if reason:
            yield _finding(offer, "unavailable", reason, dtype)
        else:
            yield _verified(candidate, dtype, device, inputs, seed)


def _verified(candidate: Candidate, dtype: str, device: torch.device, inputs: int, seed: int) -> Finding:
    """A provider on all its inputs in one dtype."""
    tally = Tally(limits(candidate.offer.feature, device.type, dtype))
    with torch.no_grad():
        try:
            for number, case in enumerate(cases.schedule(inputs, device)):
                _call(candidate, dtype, cases.make(case, getattr(torch, dtype), device, seed + number), tally)
        finally:
            candidate.close()
    if tally.complaint:
        verdict, why = "exceeds", tally.complaint
    elif tally.inputs:
        verdict, why = "ok", ""
    else:
        verdict, why = "unavailable", tally.reason
    return _finding(candidate.offer, verdict, why, dtype, tally)


def _call(candidate: Candidate, dtype: str, inputs: cases.Inputs, tally: Tally) -> None:
    """One input: is it eligible, does the output make sense, is the mask honoured, how far is it from float64."""

    def attend(given: cases.Inputs) -> torch.Tensor:
        out = candidate.attend(dtype, given)
        tally.calls += 1
        return out

    if reason := candidate.why_not(dtype, inputs):
        return tally.refuse(reason)
    try:
        out = attend(inputs)
        as_stock = candidate.offer.feature.tier == "exact"
        fault = problem(inputs, out, as_stock=as_stock) or mask_problem(inputs, out, attend)
    except Ineligible as why:
        return tally.refuse(str(why))
    except Exception as error:
        return tally.complain(
            f"it raises {type(error).__name__}: {' '.join(str(error).split())}", inputs.case
        )
    if fault:
        tally.complain(fault, inputs.case)
    if not torch.isfinite(out).all() or out.shape != inputs.query.shape:
        return None
    if as_stock:
        out = out.masked_fill(empty_rows(inputs)[..., None], 0)
    return tally.measure(errors(out, attention(inputs)), inputs.case)


def _finding(offer: Offer, verdict: str, why: str, dtype: str = "", tally: Tally | None = None) -> Finding:
    feature = offer.feature
    if tally is None:
        return Finding(feature.name, offer.plugin, feature.tier, verdict, why, dtype)
    return Finding(
        feature.name,
        offer.plugin,
        feature.tier,
        verdict,
        why,
        dtype,
        tally.inputs,
        tally.calls,
        dict(tally.ineligible.most_common()),
        tally.worst,
        tuple(map(str, tally.limits)),
    )
