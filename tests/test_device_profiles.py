"""The device profiles know whatever an installed plugin asks a machine about."""

from __future__ import annotations

import pytest

from wf_core import Host, Refused
from wf_core.facts.machines import machine_names

ELSEWHERE = [name for name in machine_names() if name != "this"]


def asked_of_a_machine(host: Host) -> set[str]:
    """The facts about devices and packages that some condition, effect or rank looks at."""
    conditions = []
    for offer in host.catalog.features():
        feature = offer.feature
        conditions += feature.conditions
        conditions += [rule.when for rule in feature.effects if rule.when is not None]
        conditions += [
            rank.when for select in feature.selects for rank in select.ranks if rank.when is not None
        ]
    names = {ref.name for condition in conditions for ref in condition.refs() if ref.kind == "fact"}
    return {name for name in names if name.startswith(("package.", "device."))}


@pytest.mark.parametrize("device", ELSEWHERE)
def test_every_fact_that_a_plugin_asks_of_a_machine_is_known(host: Host, device: str) -> None:
    asked = asked_of_a_machine(host)
    assert len(asked) > 12
    facts = host.facts("wan2.1-t2v-1.3b", device=device)
    assert sorted(name for name in asked if name not in facts) == []


def test_every_package_is_there_on_an_h200(host: Host) -> None:
    facts = host.facts("wan2.1-t2v-1.3b", device="h200")
    packages = [name for name in asked_of_a_machine(host) if name.startswith("package.")]
    assert sorted(name for name in packages if not facts.get(name)) == []


def test_what_needs_a_newer_device_is_refused_on_an_older_one(host: Host) -> None:
    legal = {
        device: [
            backend
            for backend in ("flash2", "flash3", "flash4", "cudnn", "sdpa")
            if host_judges(host, device, {"attention_backend": backend})
        ]
        for device in ELSEWHERE
    }
    assert legal == {
        "h100": ["flash2", "flash3", "flash4", "cudnn", "sdpa"],
        "h200": ["flash2", "flash3", "flash4", "cudnn", "sdpa"],
        "b200": ["flash2", "flash4", "cudnn", "sdpa"],
        "a100": ["flash2", "cudnn", "sdpa"],
        "rtx4090": ["flash2", "cudnn", "sdpa"],
        "rtx5090": ["flash2", "cudnn", "sdpa"],
        "cpu": ["sdpa"],
    }


def host_judges(host: Host, device: str, request: dict[str, str]) -> bool:
    try:
        host.resolve("wan2.1-t2v-1.3b", request, device=device)
    except Refused:
        return False
    return True
