"""Random legal requests over every feature that is implemented here, from a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from wf_core import Host, Refused
from wf_core.values import thaw


def trials(host: Host, base: Any, *, shared: bool = False) -> list[dict[str, Any]]:
    """For each implemented feature of this model's family that this machine can run: the request that turns it on.

    With ``shared`` only those whose sessions leave the process to others too.
    """
    family = host.resolve(base, {}).family
    found = []
    for record in host.plugins:
        for feature in record.manifest.features if record.manifest is not None else ():
            request = {key: thaw(value) for key, value in (feature.trial or feature.example).items()}
            if not feature.supports(family) or feature.state or not request:
                continue
            if legal(host, base, request) and not (shared and alone(host, base, request)):
                found.append(request)
    return found


def legal(host: Host, base: Any, request: dict[str, Any]) -> bool:
    """Whether the request has a plan on this machine that a session can be opened with."""
    try:
        plan = host.resolve(base, request)
    except Refused:
        return False
    return not plan.not_activatable


def alone(host: Host, base: Any, request: dict[str, Any]) -> bool:
    """Whether a session of the request needs the process to itself."""
    return any("process-global" in feature.effects for feature in host.resolve(base, request).features)


def random_requests(host: Host, base: Any, seed: int, *, shared: bool = False) -> Iterator[dict[str, Any]]:
    """Without end: a random subset of the `trials`, together where that is legal. Empty requests are among them."""
    choices, draw = trials(host, base, shared=shared), random.Random(seed)
    while True:
        request: dict[str, Any] = {}
        for trial in draw.sample(choices, draw.randint(0, len(choices))):
            if not request.keys() & trial.keys() and legal(host, base, {**request, **trial}):
                request |= trial
        yield request


def covering(
    requests: Iterable[dict[str, Any]], count: int, choices: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The first ``count`` of the requests, and of the others those that ask for a feature that none before has."""
    missing, kept = list(choices), []
    for request in requests:
        left = [trial for trial in missing if not trial.items() <= request.items()]
        if len(kept) < count or len(left) < len(missing):
            kept.append(request)
            missing = left
    assert not missing, f"in no plan: {missing}"
    return kept
