"""A run in a process of its own: ``python -m wf_core.testing.child``, with its task as JSON on stdin.

Only the plugins that the task names can be imported. The answer is one JSON object on stdout: the calls of the handlers
as (seam, whether the next layer was called), and the states in the report.
"""

from __future__ import annotations

import importlib
import importlib.abc
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

PREFIX = "wf_plugin_"
SECONDS = 120.0


class OnlyNamed(importlib.abc.MetaPathFinder):
    """Refuses to import a plugin that the task does not name."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._packages = {module.partition(".")[0] for module in modules}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        package = fullname.partition(".")[0]
        if package.startswith(PREFIX) and package not in self._packages:
            raise ImportError(
                f"{package} is another plugin: a plugin works alone with wf-core, and imports no other"
            )


def task(
    modules: Sequence[str],
    bench: str,
    requests: Sequence[Mapping[str, Any]],
    changes: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """What a child is told: plugin modules, the bench's place, the requests to run in turn, changes of the call."""
    return {
        "modules": list(modules),
        "bench": bench,
        "requests": [dict(request) for request in requests],
        "changes": dict(changes),
        **more,
    }


def run_children(tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Runs the tasks at once, each in its own process. The answers; an answer with ``error`` where one failed."""
    command = [sys.executable, "-m", "wf_core.testing.child"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = [subprocess.Popen(command, text=True, **pipes) for _ in tasks]  # type: ignore[call-overload]
    for child, told in zip(children, tasks, strict=True):
        child.stdin.write(json.dumps(told))
        child.stdin.close()
        child.stdin = None
    return [_answer(child) for child in children]


def _answer(child: Any) -> dict[str, Any]:
    try:
        out, err = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"error": f"it takes longer than {SECONDS:g} s"}
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        lines = err.strip().splitlines() or [f"it ended with exit code {child.returncode}"]
        return {"error": lines[-1]}
    return answer


def main() -> None:
    """The child's side."""
    told = json.load(sys.stdin)
    sys.meta_path.insert(0, OnlyNamed(told["modules"]))
    try:
        answer = _work(told)
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    sys.stdout.write(json.dumps(answer))


def _work(told: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    if "rank" in told:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{told['meeting']}", rank=told["rank"], world_size=told["world"]
        )
    from wf_core.errors import BaseModified
    from wf_core.testing.bench import bench_at
    from wf_core.testing.hosts import host_of
    from wf_core.testing.watching import WatchedHost

    bench = bench_at(told["bench"])
    pipe = bench.pipeline()
    if told.get("imports"):
        return {"changed": _changed_by_import(told["modules"][0], pipe, bench)}
    host = WatchedHost(host_of(*told["modules"]).discovery)
    states: dict[str, str] = {}
    for request in told["requests"]:
        with suppress(BaseModified), host.session(pipe, request) as session:  # other checks say that it is
            session.pipe(**bench.arguments(told.get("seed", 5), **told["changes"]))
            states.update({name: claim["state"] for name, claim in session.report["effective"].items()})
    return {"calls": [list(call) for call in host.calls], "states": states}


def _changed_by_import(module: str, pipe: Any, bench: Any) -> list[str]:
    """What is different about a pipeline after a plugin is imported beside it."""
    import torch

    from wf_core.isolation.fingerprint import fingerprint
    from wf_core.isolation.guard import ProcessState

    plain = pipe(**bench.arguments()).frames
    before, process = fingerprint(pipe, contents=True), ProcessState.capture()
    importlib.import_module(module)
    changed = before.diff(fingerprint(pipe, contents=True)) + process.diff(ProcessState.capture())
    if not torch.equal(pipe(**bench.arguments()).frames, plain):
        changed.append("the output is another")
    return changed


if __name__ == "__main__":
    main()
