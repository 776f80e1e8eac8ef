"""Facts about the device, from NVML: no CUDA context is made and torch is not imported."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from wf_core.facts import Fact, Facts
from wf_core.plugins.manifest_files import installed_version


def device_facts(environ: Mapping[str, str] | None = None) -> Facts:
    """``device.type``, ``count``, ``name``, ``sm`` (90 for Hopper), ``memory_bytes``, ``driver``, ``cuda``.

    No driver, no visible device or a CPU build of torch mean ``device.type`` = "cpu"; that is not an error.
    """
    environ = os.environ if environ is None else environ
    torch = installed_version("torch")
    if torch is not None and torch.endswith("+cpu"):
        return _cpu(f"torch {torch} is built for the CPU")
    try:
        import pynvml
    except ImportError:
        return _cpu("nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _cpu(f"NVML: {error}")
    try:
        return _query(pynvml, environ)
    except pynvml.NVMLError as error:
        return _cpu(f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()


def with_machine(model: Facts, machine: Facts) -> Facts:
    """Both together. Where a live model's parameters lie counts, whatever else the machine has: a model on the CPU of a
    machine with a GPU has no compute capability, no name of a device, and so on.
    """
    there = model.get("device.type", machine.get("device.type"))
    if there != machine.get("device.type"):
        others = [name for name in machine if name.startswith("device.") and name != "device.count"]
        machine = machine.with_(dict.fromkeys(others), source=f"parameters lie on {there}")
    return machine.merged(model)


def visible_devices(count: int, environ: Mapping[str, str]) -> tuple[int, ...]:
    """The indices that ``CUDA_VISIBLE_DEVICES`` leaves, in its order; ids that are no numbers keep their place."""
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(range(count))
    indices = []
    for position, part in enumerate(part.strip() for part in wanted.split(",")):
        index = (
            int(part)
            if re.fullmatch("[0-9]{1,9}", part)
            else position
            if part[:4] in ("GPU-", "MIG-")
            else -1
        )
        if not 0 <= index < count:  # the driver ignores everything from the first bad entry on
            break
        indices.append(index)
    return tuple(indices)


def _query(nvml: Any, environ: Mapping[str, str]) -> Facts:
    indices = visible_devices(int(nvml.nvmlDeviceGetCount()), environ)
    if not indices:
        return _cpu("no visible CUDA device")
    handle = nvml.nvmlDeviceGetHandleByIndex(indices[0])
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    return Facts.of(
        {
            "device.type": "cuda",
            "device.count": len(indices),
            "device.name": str(nvml.nvmlDeviceGetName(handle)),
            "device.sm": int(major) * 10 + int(minor),
            "device.memory_bytes": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            "device.driver": str(nvml.nvmlSystemGetDriverVersion()),
            "device.cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        },
        "NVML",
    )


def _cpu(why: str) -> Facts:
    facts = {"device.type": "cpu", "device.count": 0, "device.name": None, "device.sm": None}
    nothing = {"device.memory_bytes": None, "device.driver": None, "device.cuda": None}
    return Facts({name: Fact(value, why) for name, value in {**facts, **nothing}.items()})
