"""Checks that what a technique is seen to do is what its manifest declares."""

from __future__ import annotations

import random
from typing import Any

import torch

from wf_core.testing.cases import FeatureCase
from wf_core.testing.checks.registry import Nonconformity, check
from wf_core.testing.watching import Operators, WatchedHost


@check("feature", after=("base_is_untouched_after_success",))
def declared_effects_match_what_is_seen(case: FeatureCase) -> None:
    """No undeclared wait for the device, random draw, skipped block, or passing write to a weight, the grad mode or a
    tensor that others gave.
    """
    declared = {rule.effect.name for rule in case.feature.effects}
    host = case.watched()
    seen = Operators(host, _weights(case.pipe))
    streams = _streams()
    with case.session(host) as session:
        with seen:
            session.pipe(**case.arguments())
    moved = [name for name, state in _streams().items() if state != streams[name]]
    if seen.draws or moved:
        what = ", ".join(sorted(set(seen.draws)) or moved)
        raise Nonconformity(
            f"random numbers are drawn from the process's stream ({what}): use a torch.Generator of your own, so that "
            "the user's seed means what it meant."
        )
    if seen.syncs and "host-sync" not in declared:
        raise Nonconformity(
            f"the host waits for values of tensors ({', '.join(sorted(set(seen.syncs)))}, {len(seen.syncs)} times in a "
            "short run): decide from the schedule before the run, or declare the effect host-sync."
        )
    if seen.writes:
        raise Nonconformity(
            f"a weight that the user's pipeline shares was written to: {seen.writes[0]}. Replace the parameter instead."
        )
    if host.grad_left:
        raise Nonconformity(
            f"a handler at {host.grad_left[0]} leaves the grad mode changed for the layers around it: use "
            "`with torch.no_grad():` (or enable_grad) around your own computation, which puts it back."
        )
    if host.overwritten:
        raise Nonconformity(
            f"a handler at {host.overwritten[0]} writes over a tensor that it was given: others may keep it. Compute "
            "out of place, or write to tensors of your own."
        )
    _check_skips(case, host, declared)


def _streams() -> dict[str, Any]:
    """The states of the process's random streams."""
    return {"torch's CPU generator": torch.get_rng_state().tolist(), "python's random": random.getstate()}


def _check_skips(case: FeatureCase, host: WatchedHost, declared: set[str]) -> None:
    """A handler that does not call the next layer at the stack or a block (or at its branches) skips blocks."""
    not_called = {seam for seam, went_on in host.calls if not went_on}
    left_out = not_called & {"denoiser", "stack", "block"}
    if left_out and "skips-blocks" not in declared:
        raise Nonconformity(
            f"blocks are not computed in some calls of {', '.join(sorted(left_out))}: declare the effect skips-blocks."
        )
    skipped = left_out or "branch" in not_called
    if "skips-blocks" in declared and not skipped and {"denoiser", "stack", "block"} & {*case.feature.seams}:
        raise Nonconformity(
            "the effect skips-blocks is declared and every call went on to the next layer: the trial request must make "
            "the feature skip, or the effect is wrong."
        )


def _weights(pipe: Any) -> dict[int, str]:
    found = {}
    for name, component in pipe.components.items():
        if isinstance(component, torch.nn.Module):
            for path, tensor in [*component.named_parameters(), *component.named_buffers()]:
                found[tensor.untyped_storage().data_ptr()] = f"{name}.{path}"
    return found
