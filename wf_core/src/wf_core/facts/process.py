"""Facts about this process: Python, platform, installed packages, ranks. From metadata, never from an import."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping

from wf_core.facts import Fact, Facts
from wf_core.plugins.manifest_files import installed_version

PACKAGES = (
    "accelerate",
    "diffusers",
    "flash-attn",
    "gguf",
    "peft",
    "safetensors",
    "sageattention",
    "torch",
    "torchao",
    "transformers",
    "triton",
    "xformers",
)


def process_facts(packages: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> Facts:
    """``python``, ``platform``, ``process.*`` and ``package.<name>`` (None where it is not installed).

    ``packages`` are looked up beside `PACKAGES`; pass those that the conditions of the catalog name.
    """
    environ = os.environ if environ is None else environ
    world = environ.get("WORLD_SIZE", "1")
    facts = {
        "python": Fact(platform.python_version(), "sys"),
        "platform": Fact(f"{sys.platform}-{platform.machine()}", "platform"),
        "process.world": Fact(int(world) if re.fullmatch("[0-9]{1,9}", world) else 1, "WORLD_SIZE"),
        "process.group_initialised": Fact(_group_initialised(), "torch.distributed"),
        "process.cpus": Fact(_cpus(), "os"),
    }
    for name in sorted({*PACKAGES, *packages}):
        facts[f"package.{name}"] = Fact(installed_version(name), "package metadata")
    return Facts(facts)


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


def _group_initialised() -> bool:
    """Looks only at a torch that is already loaded: one that is not cannot have a process group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return False
    return bool(distributed.is_initialized())
