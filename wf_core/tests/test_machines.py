"""Judging for machines that one does not have: device profiles, and a world of a given size."""

from __future__ import annotations

from typing import Any

import pytest

from wf_core.errors import BadInput, Refused
from wf_core.facts import Facts
from wf_core.facts.machines import machine_names, machine_profile, world_facts
from wf_core.host import Host

from .conftest import Site
from .test_cli_list import wf

__all__ = ["wf"]

THIS = Facts.of(
    {
        "device.type": "cpu",
        "device.other": "of this machine",
        "python": "3.11",
        "process.world": 1,
        "package.torch": "2.11",
        "package.triton": None,
        "package.strange": None,
        "package.odd": "1.0",
    },
    "test",
)


def test_a_device_is_what_its_profile_says_and_the_rest_is_this_machine() -> None:
    facts = machine_profile("h200", THIS)
    assert facts.get("device.type") == "cuda"
    assert (facts.get("device.sm"), facts.get("device.count")) == (90, 1)
    assert facts.get("device.memory_bytes") == 141 << 30
    assert facts.get("device.cuda")
    assert "device.other" not in facts
    assert (facts.get("python"), facts.get("package.torch"), facts.get("package.odd")) == (
        "3.11",
        "2.11",
        "1.0",
    )
    assert facts.source("device.sm") == "device h200"


def test_an_optional_package_is_there_or_not_known_but_never_missing() -> None:
    facts = machine_profile("h200", THIS)
    assert facts.get("package.triton")
    assert "package.strange" not in facts


def test_a_machine_without_a_device_lacks_what_needs_one() -> None:
    facts = machine_profile("cpu", THIS)
    assert (facts.get("device.type"), facts.get("device.count")) == ("cpu", 0)
    for name in ("device.sm", "device.name", "device.memory_bytes", "package.triton"):
        assert name in facts and facts.get(name) is None
    assert facts.get("package.peft")


@pytest.mark.parametrize("name", [name for name in machine_names() if name not in ("this", "cpu")])
def test_every_profile_is_a_whole_device(name: str) -> None:
    device = machine_profile(name, THIS).values_of("device.")
    assert device["type"] == "cuda"
    assert all(device[key] for key in ("name", "sm", "memory_bytes", "driver", "cuda", "count"))


def test_an_unknown_device_is_told_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"no device 'h20'; did you mean h200\? \(h100, h200, .*, this\)"):
        machine_profile("h20", THIS)


@pytest.mark.parametrize(
    ("world", "group", "expected"),
    [
        (None, None, {}),
        (4, None, {"process.world": 4, "process.group_initialised": True}),
        (1, None, {"process.world": 1, "process.group_initialised": False}),
        (4, False, {"process.world": 4, "process.group_initialised": False}),
        (None, True, {"process.group_initialised": True}),
    ],
)
def test_a_world_of_a_given_size(world: int | None, group: bool | None, expected: dict[str, Any]) -> None:
    facts = world_facts(world, group)
    assert {name: fact.value for name, fact in facts.items()} == expected
    assert {facts.source(name) for name in facts} <= {"the caller"}


@pytest.mark.parametrize("world", [0, -1, True, 2.0, "2"])
def test_what_is_no_world(world: Any) -> None:
    with pytest.raises(BadInput, match="world must be a number of processes above 0"):
        world_facts(world, None)


# --- the host and the command line ------------------------------------------------------------------------------------

HOPPER = (
    '[[feature.condition]]\nfact = "device.sm"\nge = 90\nreason = "needs sm90, this is {value}"\n'
    '[[feature.condition]]\nfact = "process.group_initialised"\neq = true\nreason = "needs a process group"\n'
)


@pytest.fixture
def host(site: Site) -> Host:
    site.family()
    site.cache("cache-a", more=HOPPER)
    return Host.discover([str(site.folder)])


def reasons(host: Host, **machine: Any) -> list[str]:
    try:
        host.resolve("mine", {"a": True}, family="toy", **machine)
    except Refused as refused:
        return [violation.reason for violation in refused.refusal.violations]
    return []


def test_a_host_judges_for_another_machine(host: Host) -> None:
    assert reasons(host, device="h200", world=2) == []
    assert reasons(host, device="a100", world=2) == ["needs sm90, this is 80"]
    assert reasons(host, device="h200") == ["needs a process group"]
    assert reasons(host, device="h200", world=2, process_group=False) == ["needs a process group"]
    assert reasons(host, device="this", process_group=True) == ["needs sm90, this is none"]


def test_facts_of_the_caller_win_over_a_profile(host: Host) -> None:
    assert reasons(host, device="a100", world=2, facts={"device.sm": 90}) == []


def test_the_command_line_takes_the_same(site: Site, wf: Any) -> None:
    site.family()
    site.cache("cache-a", more=HOPPER)
    asked = ("resolve", "mine", "--family", "toy", "-s", "a=true")
    assert wf(*asked, "--device", "h200", "--world", "2").exit_code == 0
    refused = wf(*asked, "--device", "h200", "--world", "2", "--no-process-group")
    assert (refused.exit_code, "needs a process group" in refused.stdout) == (2, True)
    unknown = wf(*asked, "--device", "h20")
    assert (unknown.exit_code, unknown.stderr.count("\n")) == (2, 1)
    assert "did you mean h200" in unknown.stderr
    assert wf(*asked, "--world", "0").exit_code == 2
