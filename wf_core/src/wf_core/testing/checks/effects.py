"""Checks that what a technique is seen to do is what its manifest declares."""

from __future__ import annotations

from typing import Any

import torch

from wf_core.errors import BaseModified
from wf_core.testing.cases import FeatureCase
from wf_core.testing.checks.registry import Nonconformity, check
from wf_core.testing.watching import Operators, WatchedHost


@check("feature")
def declared_effects_match_what_is_seen(case: FeatureCase) -> None:
    """No undeclared change of the process, wait for the device, random draw, write to a weight, or patched class."""
    declared = {rule.effect.name for rule in case.feature.effects}
    host = case.watched()
    seen = Operators(host, _weights(case.pipe))
    random = torch.get_rng_state()
    try:
        with case.session(host, verify_contents=True) as session:
            with seen:
                session.pipe(**case.arguments())
    except BaseModified as modified:
        raise Nonconformity(
            f"{modified} A technique replaces modules and parameters on the copy that prepare() receives; "
            "a process-wide setting goes through process_settings() and the effect process-global."
        ) from modified
    if seen.draws or not torch.equal(random, torch.get_rng_state()):
        what = ", ".join(sorted(set(seen.draws))) or "something"
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
    _check_skips(case, host, declared)


def _check_skips(case: FeatureCase, host: WatchedHost, declared: set[str]) -> None:
    """A handler that does not call the next layer at the stack or a block skips blocks."""
    left_out = {seam for seam, went_on in host.calls if not went_on} & {"denoiser", "stack", "block"}
    if left_out and "skips-blocks" not in declared:
        raise Nonconformity(
            f"blocks are not computed in some calls of {', '.join(sorted(left_out))}: declare the effect skips-blocks."
        )
    if "skips-blocks" in declared and not left_out and {"denoiser", "stack", "block"} & {*case.feature.seams}:
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
