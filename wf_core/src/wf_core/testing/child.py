"""A run in a process of its own, forked from one that has loaded what all of them need.

Only the plugins that the task names can be imported. The answer is one JSON object: the calls of the handlers
as (seam, whether the next layer was called), the states in the report, and what importing the plugin changed.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.abc
import json
import os
import select
import signal
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
        "path": sys.path,
        **more,
    }


class _Server:
    """A process that has loaded torch and the families' benches, and forks itself for every task.

    Loading them takes seconds and is done once, beside what the caller does meanwhile. A task that needs other modules
    imports them in its own fork, so that no task sees what another has loaded.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        command = [sys.executable, "-m", "wf_core.testing.child", *preload]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # a process that has started threads is not forked
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )
        atexit.register(self.close)

    def run(self, tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The answers, in the order of the tasks, which run at once."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(list(tasks)) + "\n")
            self._process.stdin.flush()
            answers: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            return [{"error": "the process that runs the checks has ended"}] * len(tasks)
        return answers

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


@functools.cache
def _server(preload: tuple[str, ...]) -> _Server:
    return _Server(preload)


def warm_up(benches: Sequence[str]) -> None:
    """Starts the process that will run the children, without waiting for it."""
    _server(_modules(benches))


def run_children(tasks: Sequence[Mapping[str, Any]], benches: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Runs the tasks at once, each in its own process. The answers; an answer with ``error`` where one failed.

    ``benches`` are those of the families that tasks of this kind are run on, loaded once for all.
    """
    return _server(_modules(benches or [told["bench"] for told in tasks])).run(tasks) if tasks else []


def _modules(benches: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({bench.partition(":")[0] for bench in benches}))


def serve() -> None:
    """The server's side: one line of tasks in, one line of answers out, until the caller is gone."""
    answers_to = os.dup(1)
    os.dup2(2, 1)  # what a task prints is no answer
    for module in ("torch", *sys.argv[1:]):
        with suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin:
        pipes = [_fork(told) for told in json.loads(line)]
        os.write(answers_to, (json.dumps([_answer(pid, pipe) for pid, pipe in pipes]) + "\n").encode())


def _fork(told: Mapping[str, Any]) -> tuple[int, int]:
    """A child at work on a task: its process id, and the pipe that its answer comes from."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        sys.path[:] = told["path"]
        sys.meta_path.insert(0, OnlyNamed(told["modules"]))
        answer = _work(told)
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    with os.fdopen(writing, "w") as file:
        file.write(json.dumps(answer))
    os._exit(0)


def _answer(pid: int, pipe: int) -> dict[str, Any]:
    ready, _, _ = select.select([pipe], [], [], SECONDS)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(pipe) as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    if not ready:
        return {"error": f"it takes longer than {SECONDS:g} s"}
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"error": f"it ended the process with the status {status}"}
    return answer


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
    changed = _changed_by_import(told["modules"][0], pipe, bench) if told.get("imports") else []
    host = WatchedHost(host_of(*told["modules"]).discovery)
    states: dict[str, str] = {}
    for request in told["requests"]:
        with suppress(BaseModified), host.session(pipe, request) as session:  # other checks say that it is
            session.pipe(**bench.arguments(told.get("seed", 5), **told["changes"]))
            states.update({name: claim["state"] for name, claim in session.report["effective"].items()})
    return {"changed": changed, "calls": [list(call) for call in host.calls], "states": states}


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
    serve()
