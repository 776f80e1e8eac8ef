"""A session: a structural copy with a plan installed. It holds runs, one after another; closing it is the uninstall."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs

from wf_core.errors import BadInput, BaseModified, Busy, PluginFault
from wf_core.facts.run import run_facts
from wf_core.isolation.guard import process_global
from wf_core.isolation.witness import Witness
from wf_core.manifests.effects import effect_name
from wf_core.model.family import CallPlan, Schedule
from wf_core.resolving.rejudging import not_activatable, refuse, rejudge, rejudge_rules, with_plan
from wf_core.resolving.saved import changed_since
from wf_core.sessions import driver, open_sessions
from wf_core.sessions.blame import ask, fault_of, plugin_of
from wf_core.sessions.gradients import grad_fact
from wf_core.sessions.memory import held_bytes
from wf_core.sessions.opening import Opened, close_all, open_copy
from wf_core.sessions.report import Report, pending_report
from wf_core.sessions.runner import Runner

if TYPE_CHECKING:
    from wf_core.facts import Facts
    from wf_core.host import Host
    from wf_core.kinds.techniques import Technique
    from wf_core.resolving.plan import Plan
    from wf_core.sessions.run import Run

PROCESS_GLOBAL = "process-global"
_numbers = itertools.count(1)


class Session:
    """Open with ``host.session(base, request)``; use as a context manager, or call ``close()``.

    ``pipe`` is the session's pipeline (``model`` for a base that is a bare transformer). One run at a time: a second
    call while one is running raises ``Busy``.
    """

    def __init__(
        self,
        host: Host,
        base: Any,
        plan: Plan,
        *,
        contents: bool = False,
        wait: float = 0.0,
        extra: Mapping[str, Technique] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self.name = f"session-{next(_numbers)}({'+'.join(f.name for f in plan.features) or 'plain'})"
        self.overlapped: set[str] = set()
        self.reports: list[Report] = []
        self._pipe: Any = None
        self._model: Any = None
        self.closed = False
        self._host = host
        self._busy = threading.Lock()
        self._pending = pending_report(plan, host.versions)
        self._token = open_sessions.acquire(self, exclusive=_is_process_global(plan), wait=wait)
        self._dropped = weakref.finalize(self, open_sessions.give_back, self._token)
        try:
            self._open(base, contents, extra or {}, facts or {})
        except BaseException:
            self._leave()
            raise

    def _open(
        self, base: Any, contents: bool, extra: Mapping[str, Technique], facts: Mapping[str, Any]
    ) -> None:
        keys = {f"request.{key}": value for key, value in self.plan.host_keys_dict().items()}
        known = self._host.facts(base).with_(keys, source="request").with_(facts, source="the caller")
        refuse(self.plan, (*changed_since(self.plan, self._host.catalog), *not_activatable(self.plan)))
        known = with_plan(known, self.plan, self._host.catalog)
        refuse(self.plan, rejudge(self.plan, known))
        refuse(self.plan, rejudge_rules(self.plan, known, self._host.catalog))
        self._witness: Witness | None = Witness(base, contents=contents)
        self._settings = ExitStack()
        opened: Opened | None = None
        try:
            with self._witness.watching(self.overlapped):
                opened = open_copy(self._host, base, self.plan, known, extra)
                self._witness.moved = opened.family.moved(base)
            self._settings.enter_context(process_global(_process_settings(self.plan, opened)))
            self._install(opened, known)
        except BaseException:
            try:
                if opened is not None:
                    close_all(opened.techniques)
                    opened.family.uninstall(opened.components)
            finally:
                self._verify()
            raise

    def _install(self, opened: Opened, known: Facts) -> None:
        self._opened: Opened | None = opened
        self._runner = Runner(self.plan, known, opened, self._host.versions)
        if opened.is_pipeline:
            self._pipe = opened.copy
            driver.drive(self._pipe, self)
        else:
            self._model = opened.copy

    @property
    def pipe(self) -> Any:
        """The session's pipeline; None where the base is a bare transformer. Raises ``RuntimeError`` once closed."""
        self._require_open()
        return self._pipe

    @property
    def model(self) -> Any:
        """The session's transformer; None where the base is a pipeline. Raises ``RuntimeError`` once closed."""
        self._require_open()
        return self._model

    def _require_open(self) -> None:
        if self.closed:
            raise RuntimeError("this session is closed; open a new one")

    def __repr__(self) -> str:
        return f"<wf session {self.name}, {'closed' if self.closed else 'open'}, {len(self.reports)} runs>"

    # --- reports -----------------------------------------------------------------------------------------------

    @property
    def report(self) -> Report:
        """The report of the last run; of the pending plan when nothing has run."""
        return self.reports[-1] if self.reports else self._pending

    def held_bytes(self) -> int:
        """Bytes of device and host memory that the techniques keep alive now, not counting weights; 0 once closed."""
        if self._opened is None:
            return 0
        return held_bytes(technique.held_tensors() for technique in self._opened.techniques.values())

    # --- runs --------------------------------------------------------------------------------------------------

    def call(self, stock: partial[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """One call of the pipeline: begin a run, make the stock call, end the run. What ``s.pipe(...)`` does."""
        arguments = driver.bind(stock, args, kwargs)
        with self._one_at_a_time() as opened:
            plan = opened.family.plan_call(self.pipe, arguments)
            plan = attrs.evolve(plan, facts={**plan.facts, **grad_fact(opened, self.pipe)})
            with self._watching(), self._runner.running(plan, self.reports) as run:
                result = stock(*args, **kwargs)
                if getattr(self.pipe, "_interrupt", False):
                    run.state = "interrupted"
                return result

    @contextmanager
    def run(
        self,
        *,
        num_inference_steps: int = 0,
        timesteps: Sequence[float] = (),
        branches: int = 1,
        **facts: Any,
    ) -> Iterator[Run]:
        """A run that the caller drives: call ``s.model(...)`` inside it.

        ``timesteps`` is the schedule, if it is known beforehand; ``branches`` is the number of transformer calls per
        step for drivers that enter no ``cache_context`` (one branch, called ``cond``, unless told otherwise). Other
        keywords become ``run.*`` facts. Raises ``BadInput`` for a keyword that is no such fact.
        """
        if branches not in (1, 2):
            raise BadInput(f"branches={branches!r}: a step has one transformer call, or two with guidance")
        steps = tuple(float(t) for t in timesteps)
        told = {"num_inference_steps": num_inference_steps or len(steps) or None, **facts}
        known = {name: fact.value for name, fact in run_facts(told).items()} | {"run.branches": branches}
        with self._one_at_a_time() as opened:
            known = {**grad_fact(opened), **known}
            expert = next(iter(opened.family.roots(opened.components)))
            plan = CallPlan(Schedule(steps, (expert,) * len(steps)), branches, known)
            with self._watching(own_thread=False), self._runner.running(plan, self.reports) as run:
                yield run

    @contextmanager
    def _one_at_a_time(self) -> Iterator[Opened]:
        if not self._busy.acquire(blocking=False):
            raise Busy(
                f"{self.name} is in the middle of a run; wait for it, or open another session on the same base "
                "(sessions share the weights)"
            )
        try:
            self._require_open()
            assert self._opened is not None
            yield self._opened
        finally:
            self._busy.release()

    # --- closing -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Drop the copy. Idempotent. Raises ``Busy`` during a run, ``PluginFault`` when a technique failed to close,
        and ``BaseModified`` when the base or the process state is not what it was.
        """
        if self.closed:
            return
        if not self._busy.acquire(blocking=False):
            raise Busy(f"{self.name} cannot be closed in the middle of a run")
        try:
            self._close()
        finally:
            self._busy.release()

    def _close(self) -> None:
        opened, self._opened, self.closed = self._opened, None, True
        assert opened is not None
        failures: list[tuple[str, Exception]] = []
        try:
            try:
                with self._watching():
                    failures = close_all(opened.techniques)
            finally:
                self._let_go(opened)
                self._verify()
        except BaseModified as modified:
            for name, error in failures:
                modified.add_note(f"feature {name!r} also failed to close: {type(error).__name__}: {error}")
            raise
        finally:
            self._leave()
        if failures:
            raise fault_of(self.plan, failures, "close")

    def _let_go(self, opened: Opened) -> None:
        """Cut what ties copy, wiring and session together, so that reference counts free the copy."""
        opened.family.uninstall(opened.components)
        opened.wiring.close()
        self._runner.close()
        if self._pipe is not None:
            driver.release(self._pipe)
        self._pipe = self._model = None

    def _verify(self) -> None:
        """Compare base and process with what they were. Raises ``BaseModified`` if this session was alone."""
        self._settings.close()
        witness, self._witness = self._witness, None
        assert witness is not None
        differences = witness.differences()
        if not differences:
            return
        if not self.overlapped:
            raise BaseModified(differences, tuple(sorted({f.plugin for f in self.plan.features})))
        note = {"differences": differences, "overlapped": sorted(self.overlapped)}
        self.reports[-1:] = [Report({**self.report, "unattributed": [note]})]

    def _watching(self, *, own_thread: bool = True) -> AbstractContextManager[None]:
        assert self._witness is not None
        return self._witness.watching(self.overlapped, own_thread=own_thread)

    def _leave(self) -> None:
        self._dropped.detach()
        open_sessions.release(self, self._token)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _process_settings(plan: Plan, opened: Opened) -> dict[str, Any]:
    """The settings that techniques ask for; asking without having declared it is the plugin's fault."""
    settings: dict[str, Any] = {}
    for name, technique in opened.techniques.items():
        asked = ask(plan, name, "process_settings()", Mapping, technique.process_settings)
        if asked and not _is_process_global(plan):
            raise PluginFault(
                plugin_of(plan, name), "activation", f"{name!r} sets process-wide state undeclared"
            )
        settings.update(asked)
    return settings


def _is_process_global(plan: Plan) -> bool:
    return any(effect_name(e) == PROCESS_GLOBAL for feature in plan.features for e in feature.effects)
