"""Checks that a technique takes effect, that its counters prove it, and that its results keep their tier."""

from __future__ import annotations

import math
from typing import Any

import torch

from wf_core.testing.cases import FeatureCase
from wf_core.testing.checks.registry import Nonconformity, NotApplicable, check


@check("feature", after=("base_is_untouched_after_success",))
def asked_for_is_effective(case: FeatureCase) -> None:
    """The trial request runs, and its counters prove that the feature took effect."""
    with case.session() as session:
        frames = session.pipe(**case.arguments()).frames
        claim = case.claim(session)
        fallbacks = session.report["fallbacks"]
    if claim["state"] != "effective":
        told = f"; fallbacks: {fallbacks[0]['reason']}" if fallbacks else ""
        raise Nonconformity(
            f"after the trial request the report says {claim['state']}, with {claim['evidence']}{told}. Count what is "
            "done with self.counters.add(), or give a `trial` under which the feature acts."
        )
    if not torch.isfinite(frames.float()).all():
        raise Nonconformity("the output has values that are not finite.")


@check("feature", after=("base_is_untouched_after_success",))
def counters_move_only_when_the_technique_acts(case: FeatureCase) -> None:
    """With its handlers bypassed the technique does nothing, and its counters must not say otherwise."""
    host = case.watched()
    host.bypassed = True
    with case.session(host) as session:
        if not any(technique.handlers() for technique in host.techniques):
            raise NotApplicable("it has no handlers that could be bypassed")
        session.pipe(**case.arguments())
        claim = case.claim(session)
    if claim["state"] in ("effective", "partial"):
        raise Nonconformity(
            f"no handler ran, and the report says {claim['state']} ({claim['evidence']}): count in the handler, where "
            "the work is done, and not in begin() or prepare()."
        )


@check("feature", after=("base_is_untouched_after_success",))
def the_claimed_tier_holds(case: FeatureCase) -> None:
    """Exact is bit-identical; equivalent keeps its stated bound; approximate states what was measured."""
    plain, ours = case.plain, case.alone
    if plain.shape != ours.shape:
        raise Nonconformity(
            f"the output has the shape {tuple(ours.shape)}, the plain run's {tuple(plain.shape)}."
        )
    if case.feature.tier == "exact" and not torch.equal(plain, ours):
        raise Nonconformity(
            f"tier exact means bit-identical, and the largest difference is {_max_abs(plain, ours):.3g}: claim "
            "equivalent with a bound, or approximate."
        )
    bounds = [b for b in case.feature.bounds if (b.device, b.dtype) == ("cpu", "float32")]
    if case.feature.tier == "equivalent" and not bounds:
        raise Nonconformity(
            'tier equivalent needs its bound as a number: [[feature.bound]] measure = "relative-l2" (or max-abs, '
            'psnr), value, for device "cpu" and dtype "float32".'
        )
    for bound in bounds:
        got = MEASURES[bound.measure](plain, ours)
        kept = got >= bound.value if bound.measure == "psnr" else got <= bound.value
        if not kept:
            raise Nonconformity(
                f"{bound.measure} to the plain run is {got:.3g}, and the bound is {bound.value:.3g}."
            )


def _max_abs(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def _relative_l2(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / one.double().norm())


def _psnr(one: torch.Tensor, other: torch.Tensor) -> float:
    """Decibels, with the plain run's range of values as the peak."""
    error = float((one.double() - other.double()).pow(2).mean())
    peak = float(one.double().max() - one.double().min())
    return math.inf if error == 0 else 10 * math.log10(peak * peak / error)


MEASURES: dict[str, Any] = {"max-abs": _max_abs, "relative-l2": _relative_l2, "psnr": _psnr}
