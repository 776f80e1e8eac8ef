"""Children that import what could hang, exit or crash: plugins and optional packages, a few at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from wf_core.cli.packages import DIFFUSERS, Package
from wf_core.names import normalise
from wf_core.plugins.discovery import PluginRecord

Ask = Callable[[Iterable[str]], dict[str, Any]]
MOST = 4
"""Children at once, at most; as many as there are CPUs if those are fewer."""


@attrs.frozen
class Probed:
    """An installed package, and why it cannot be used; "" when it can."""

    package: Package
    reason: str

    @property
    def name(self) -> str:
        """Its name in normal form."""
        return normalise(self.package.name)

    def __str__(self) -> str:
        return f"{self.package.name} {self.package.version}"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        own = {
            "name": self.package.name,
            "version": self.package.version,
            "modules": list(self.package.modules),
        }
        return {**own, "imports": not self.reason, "reason": self.reason}


def probe_all(
    records: Sequence[PluginRecord], packages: Sequence[Package], seconds: float, cpus: int
) -> tuple[list[tuple[str, str]], list[Probed]]:
    """The state and reason of each plugin, and what came of each package, in their orders.

    What diffusers' child has imported needs no child of its own.
    """
    first = tuple(package for package in packages if normalise(package.name) == DIFFUSERS)
    rest = tuple(package for package in packages if package not in first)
    with (
        TemporaryDirectory(prefix="wf-doctor-", ignore_cleanup_errors=True) as scratch,
        ThreadPoolExecutor(max(1, min(MOST, cpus))) as pool,
    ):
        ask = partial(_child, seconds=seconds, scratch=scratch)
        model_code = [pool.submit(_answer, ask, package, {}) for package in first]  # it takes longest
        states = [pool.submit(probe_plugin, ask, record) for record in records]
        told = model_code[0].result() if model_code else {}
        answers = [pool.submit(_answer, ask, package, told.get("loaded", {})) for package in rest]
        pairs = zip(rest, answers, strict=True)
        probed = [Probed(package, str(answer.result()["reason"])) for package, answer in pairs]
        model_probed = [Probed(package, _with_culprit(told, probed)) for package in first]
        return [state.result() for state in states], model_probed + probed


def probe_plugin(ask: Ask, record: PluginRecord) -> tuple[str, str]:
    """The plugin's state after an import in a child process, and the reason."""
    if record.state != "available":
        return record.state, record.reason
    answer = ask(["wf_core.cli.probe", record.name, record.module, record.attribute])
    return str(answer.get("state", "broken")), str(answer["reason"])


def _answer(ask: Ask, package: Package, loaded: Mapping[str, str]) -> dict[str, Any]:
    """What a child says of the package's modules; of those that are ``loaded`` already nothing more is asked."""
    if not package.modules:
        return {"reason": "its metadata names no module"}
    if all(module in loaded for module in package.modules):
        return {"reason": next(filter(None, (loaded[module] for module in package.modules)), "")}
    return ask(["wf_core.cli.package_probe", *package.modules])


def _child(arguments: Iterable[str], seconds: float, scratch: str) -> dict[str, Any]:
    """What ``python -m`` answers, or a reason in its place. ``scratch`` is where it may leave files: libraries make
    folders for their caches as they are imported.
    """
    command = [sys.executable, "-m", *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            env=os.environ | {"TMPDIR": scratch},
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"reason": f"its import takes longer than {seconds:g} s"}
    except ValueError:
        return {"reason": f"its import ends the process with exit code {done.returncode}"}
    return answer


def _with_culprit(told: dict[str, Any], probed: Sequence[Probed]) -> str:
    """Why diffusers cannot be imported, with the package that it is laid to: the one whose code failed, or else those
    that cannot be imported by themselves.
    """
    reason = str(told["reason"])
    broken = [item.package.name for item in probed if item.reason]
    blame = told.get("culprit") or ", ".join(broken)
    return f"{reason} (because of {blame}; runs count it as not installed)" if reason and blame else reason
