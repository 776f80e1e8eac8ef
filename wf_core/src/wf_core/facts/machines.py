"""Machines that one does not have: device profiles as data, and a world of a given size."""

from __future__ import annotations

from typing import Any

from wf_core import data
from wf_core.errors import BadInput
from wf_core.facts import Facts
from wf_core.names import did_you_mean

THIS = "this"
"""The name of the machine that this process runs on."""
_PACKAGE = "package."


def machine_names() -> tuple[str, ...]:
    """The names of the device profiles, and "this"."""
    return (*data.table("devices")["devices"], THIS)


def machine_profile(name: str, this: Facts) -> Facts:
    """What is known of a machine like the profile; Python, the platform and required packages are those of ``this``.

    An optional package that the profile does not name and that is not installed here is not known, rather than absent.
    Raises `BadInput` for a name that is no profile.
    """
    table = data.table("devices")
    device = table["devices"].get(name.strip().lower()) if isinstance(name, str) else None
    if device is None:
        raise BadInput(
            f"no device {name!r}{did_you_mean(str(name), machine_names())} ({', '.join(machine_names())})"
        )
    kept = {
        fact: value
        for fact, value in this.items()
        if not fact.startswith("device.") and not (fact.startswith(_PACKAGE) and value.value is None)
    }
    return Facts(kept).with_(
        {**_device(device, table["cuda"]), **_packages(device, table)}, source=f"device {name}"
    )


def _device(device: dict[str, Any], cuda: dict[str, Any]) -> dict[str, Any]:
    there = bool(device)
    return {
        "device.type": "cuda" if there else "cpu",
        "device.count": 1 if there else 0,
        "device.name": device.get("name"),
        "device.sm": device.get("sm"),
        "device.memory_bytes": device["memory_gib"] << 30 if there else None,
        "device.driver": cuda["driver"] if there else None,
        "device.cuda": cuda["cuda"] if there else None,
    }


def _packages(device: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """Every optional package on a machine with a device; without one, those that need none, and not the others."""
    needing = {name: version if device else None for name, version in table["packages"]["cuda"].items()}
    found = {**needing, **table["packages"]["any"]}
    return {f"{_PACKAGE}{name}": version for name, version in found.items()}


def world_facts(world: int | None, process_group: bool | None) -> Facts:
    """``process.world`` and ``process.group_initialised`` of a run to be judged; nothing where neither is given."""
    if world is None and process_group is None:
        return Facts()
    if process_group is not None and not isinstance(process_group, bool):
        raise BadInput(f"process_group is true or false, got {process_group!r}")
    values: dict[str, Any] = {}
    if world is not None:
        if isinstance(world, bool) or not isinstance(world, int) or world < 1:
            raise BadInput(f"world must be a number of processes above 0, got {world!r}")
        values["process.world"] = world
    if process_group is not None or world is not None:
        values["process.group_initialised"] = (world or 1) > 1 if process_group is None else process_group
    return Facts.of(values, "the caller")
