"""Begin and end the runs of one session: the third moment of checking, the counters, the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from wf_core.errors import Refused
from wf_core.kinds.runview import RunView
from wf_core.resolving.plan import Violation
from wf_core.resolving.rejudging import refuse, rejudge
from wf_core.sessions.blame import ask, attribute, each, fault_of
from wf_core.sessions.memory import held_bytes, peak_bytes, reset_peak
from wf_core.sessions.report import Report, run_report
from wf_core.sessions.run import Run

if TYPE_CHECKING:
    from wf_core.facts import Facts
    from wf_core.kinds.techniques import Technique
    from wf_core.model.family import CallPlan
    from wf_core.resolving.plan import Plan
    from wf_core.sessions.opening import Opened


class Runner:
    """Runs of one session. State is cleared at both ends of each."""

    def __init__(self, plan: Plan, facts: Facts, opened: Opened, versions: Mapping[str, str]) -> None:
        self._plan = plan
        self._facts = facts
        self._opened: Opened | None = opened
        self._versions = versions
        self._ran = False

    def close(self) -> None:
        self._opened = None

    @contextmanager
    def running(self, call: CallPlan, reports: list[Report]) -> Iterator[Run]:
        """One run around the caller's work; its report is appended to ``reports`` however it ends."""
        opened = self._opened
        assert opened is not None
        run = Run(self._view(opened, call))
        begun: dict[str, Technique] = {}
        try:
            self._check(opened.techniques, run, call)
            self._begin(opened, run, begun)
            yield run
        except BaseException as error:
            run.finish("aborted" if begun else _state_before(error), f"{type(error).__name__}: {error}")
            told = attribute(self._plan, opened.techniques, error)
            if told is error:
                raise
            raise told from error
        else:
            run.finish(run.state if run.state != "running" else "done")
        finally:
            opened.wiring.run = None
            self._end(opened, run, begun, reports)

    def _begin(self, opened: Opened, run: Run, begun: dict[str, Technique]) -> None:
        reset_peak()
        for name, technique in opened.techniques.items():
            begun[name] = technique
            technique.counters.open(run.counters)
            technique.begin(run.view)
        opened.wiring.begin_schedule(run.view.timesteps)
        opened.wiring.run = run

    def _view(self, opened: Opened, call: CallPlan) -> RunView:
        roots = opened.family.roots(opened.components)
        family = opened.family
        steps = call.schedule.timesteps
        return RunView(
            num_inference_steps=len(steps) or int(call.facts.get("run.num_inference_steps") or 0),
            timesteps=steps,
            experts=call.schedule.experts,
            branches=call.branches,
            facts=self._facts.with_(call.facts, source="the call's arguments"),
            modulation=lambda expert, timesteps: family.modulation(roots[expert], timesteps),
            now=opened.wiring.now,
        )

    def _check(self, techniques: Mapping[str, Technique], run: Run, call: CallPlan) -> None:
        """Everything that is known only now, before any model call; a technique sees only a call that can be made."""
        violations = [_violation("WF-B001", reason, "call") for reason in call.problems]
        violations += rejudge(self._plan, run.view.facts, final=True)
        refuse(self._plan, violations)
        violations = []
        for name, technique in techniques.items():
            reasons = ask(self._plan, name, "check()", tuple, partial(_reasons, technique, run.view))
            violations += [_violation("WF-B002", str(reason), name) for reason in reasons]
        refuse(self._plan, violations)

    def _end(self, opened: Opened, run: Run, begun: Mapping[str, Technique], reports: list[Report]) -> None:
        """Report while the techniques still hold what they counted; then release everything, whatever fails."""
        evidence, failures = gather_evidence(begun)
        held = {"held_bytes_at_end": _held(begun, failures)}
        report = run_report(
            self._plan, run, begun, evidence, versions=self._versions, first_run=not self._ran
        )
        self._ran = self._ran or bool(run.calls)
        try:
            failures += each(begun, lambda technique: technique.end())
        finally:
            opened.family.release(opened.components)
            held["held_bytes"] = _held(begun, failures)
            reports.append(Report({**report, "memory": {**held, **peak_bytes()}}))
        if failures:
            raise fault_of(self._plan, failures, "end of run")


def gather_evidence(
    techniques: Mapping[str, Technique],
) -> tuple[dict[str, Mapping[str, Any]], list[tuple[str, Exception]]]:
    """What each technique shows beside its counters, and which of them failed to."""
    evidence: dict[str, Mapping[str, Any]] = {}
    failures: list[tuple[str, Exception]] = []
    for name, technique in techniques.items():
        try:
            evidence[name] = dict(technique.evidence())
        except Exception as error:
            evidence[name] = {"evidence_failed": f"{type(error).__name__}: {error}"}
            failures.append((name, error))
    return evidence, failures


def _reasons(technique: Technique, view: RunView) -> tuple[str, ...]:
    reasons = technique.check(view)
    if isinstance(reasons, str):
        raise TypeError("one text instead of a sequence of reasons")
    return tuple(reasons)


def _held(techniques: Mapping[str, Technique], failures: list[tuple[str, Exception]]) -> int:
    """Bytes that the techniques hold; one that cannot say adds to the failures."""
    groups = []
    for name, technique in techniques.items():
        try:
            groups.append(tuple(technique.held_tensors()))
        except Exception as error:
            failures.append((name, error))
    return held_bytes(groups)


def _state_before(error: BaseException) -> str:
    return "refused" if isinstance(error, Refused) else "aborted"


def _violation(code: str, reason: str, who: str) -> Violation:
    return Violation(code=code, level="forbid", reason=reason, involves=(who,), fix="")
