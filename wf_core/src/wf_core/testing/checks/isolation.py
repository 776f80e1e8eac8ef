"""Checks that a technique leaves nothing behind, however a run ends, and that runs do not know of each other."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from wf_core.errors import BaseModified
from wf_core.isolation.fingerprint import fingerprint
from wf_core.isolation.guard import ProcessState
from wf_core.sessions.session import Session
from wf_core.testing.cases import FeatureCase
from wf_core.testing.checks.registry import Nonconformity, NotApplicable, check
from wf_core.testing.watching import Injected, Raiser, Stopped

SUCCESS = "base_is_untouched_after_success"
TOGETHER_SECONDS = 60.0
MOST_CALLS = 24
"""Of more calls of one seam than this, those that raise are spread evenly, the first and the last among them."""


@check("feature")
def base_is_untouched_after_success(case: FeatureCase) -> None:
    """After a run the base (structure, tensors, contents), the process, and the base's own output are as before."""
    try:
        with _untouched(case, "a run that succeeded"), case.session(verify_contents=True) as session:
            session.pipe(**case.arguments())
    except Nonconformity as found:
        raise Nonconformity(
            f"{str(found).rstrip('.')}. A technique replaces modules and parameters on the copy that prepare() "
            "receives, and patches no class; a process-wide setting goes through process_settings() and the effect "
            "process-global."
        ) from found
    again = case.pipe(**case.arguments()).frames
    if not torch.equal(again, case.plain):
        raise Nonconformity(
            f"after a session the pipeline's own output is another ({_distance(again, case.plain)}): something that it "
            "calls was replaced and not put back. Replace it on the session's copy instead."
        )


@check("feature", after=("base_is_untouched_after_success",))
def switched_off_is_identity(case: FeatureCase) -> None:
    """With the plugin installed and the feature not asked for, the output is bit-identical to the pipeline's own."""
    with case.host.session(case.pipe, {}) as session:
        off = session.pipe(**case.arguments()).frames
    if not torch.equal(off, case.plain):
        raise Nonconformity(
            f"an empty session differs from the pipeline's own output by {_distance(off, case.plain)}: the plugin acts "
            "without being asked, at import or through state of the process."
        )


@check("feature", after=(SUCCESS, "a_second_request_starts_clean", "memory_is_released"))
def base_is_untouched_after_an_abort(case: FeatureCase) -> None:
    """After a run that a callback stops as Ctrl-C does, or interrupts, nothing is left and the next run is right."""

    def abort(*_: Any) -> Any:
        raise Stopped("aborted by a callback")

    def interrupt(pipe: Any, *_: Any) -> Any:
        pipe._interrupt = True
        return {}

    case.alone  # noqa: B018  made before, so that it is not made inside of what is watched
    with _untouched(case, "an aborted run"), case.session(verify_contents=True) as session:
        for stop in (abort, interrupt):
            try:
                session.pipe(**case.arguments(), callback_on_step_end=stop)
            except Stopped:
                pass
            _nothing_held(session, f"a run that ended by {stop.__name__}")
            _expect(
                session.pipe(**case.arguments()).frames,
                case.alone,
                f"the run after one that ended by {stop.__name__}",
            )


@check("feature", after=("base_is_untouched_after_an_abort",))
def base_is_untouched_after_an_exception_at_every_seam_call(case: FeatureCase) -> None:
    """At each call of each of its seams the next layer raises: nothing is left, the next run is bit-identical."""
    seams = [seam for seam in case.feature.seams if seam not in ("scheduler", "placement")]
    if not seams:
        raise NotApplicable("it stands at no seam that is called")
    raiser = Raiser(*seams)
    case.alone  # noqa: B018  made before, so that it is not made inside of what is watched
    with _untouched(case, "runs that raised"):
        with case.session(extra={"raiser": raiser}, verify_contents=True) as session:
            _expect(session.pipe(**case.arguments()).frames, case.alone, "a run with an observer inside")
            counts = dict(raiser.counts)
            for seam, count in counts.items():
                for number in _spread(count):
                    raiser.arm(seam, number)
                    _raises(session, case, f"call {number} of {count} of {seam}")
                raiser.disarm()
                _expect(
                    session.pipe(**case.arguments()).frames, case.alone, f"the run after exceptions at {seam}"
                )


@check("feature", after=(SUCCESS,))
def a_second_request_starts_clean(case: FeatureCase) -> None:
    """A second run of another size and number of steps gives what it gives when it is run first."""
    other = dict(case.bench.other)
    with case.session() as session:
        session.pipe(**case.arguments())
        second = session.pipe(**case.arguments(**other)).frames
        again = session.pipe(**case.arguments()).frames
    with case.session() as session:
        first = session.pipe(**case.arguments(**other)).frames
    _expect(second, first, "the second run of a session, of another size and number of steps,")
    _expect(again, case.alone, "the third run of a session")


@check("feature", after=(SUCCESS, "declared_effects_match_what_is_seen"))
def two_sessions_at_once_equal_their_solo_runs(case: FeatureCase) -> None:
    """Two sessions on one base, in two threads and step by step together, each give what they give alone."""
    if any(rule.effect.name == "process-global" for rule in case.feature.effects):
        raise NotApplicable(
            "it holds settings of the whole process, so that its sessions are alone by contract"
        )
    other = dict(case.bench.other)
    with case.session() as session:
        wanted = {"first": case.alone, "second": session.pipe(**case.arguments(**other)).frames}
    got: dict[str, Any] = {}
    changes = {"first": {}, "second": other}
    with case.session() as one, case.session() as two:
        sessions = {"first": one, "second": two}
        step = threading.Barrier(len(wanted))
        _in_threads({name: _call(case, sessions[name], changes[name], got, name, step) for name in wanted})
    for name, frames in wanted.items():
        if isinstance(got[name], BaseException):
            raise Nonconformity(
                f"of two sessions at once the {name} failed: {got[name]} Keep what belongs to a run on the technique, "
                "never on a class or a module: every session has a technique of its own."
            ) from got[name]
        _expect(got[name], frames, f"of two sessions at once the {name}")


@check("feature", after=(SUCCESS,))
def memory_is_released(case: FeatureCase) -> None:
    """After a run the technique holds no tensor of it; after the session nothing of it is alive."""
    case.plain  # noqa: B018  what torch keeps after a first call is no leak of the plugin
    kept = _alive_after_a_run(case, case.request)
    usual = _alive_after_a_run(case, {})
    alive = _alive_after(lambda: _two_sessions(case))
    if kept > usual:
        raise Nonconformity(
            f"{kept - usual} tensors of a run are alive after it that a plain run does not leave: release every tensor "
            "in end(), keep none in a module-level or class-level container, and name in held_tensors() what is kept "
            "meanwhile."
        )
    if alive:
        raise Nonconformity(
            f"{alive} tensors are alive after two sessions that were not before: release every tensor in end() and "
            "close(), and keep none in a module-level or class-level container."
        )


def _alive_after_a_run(case: FeatureCase, request: dict[str, Any]) -> int:
    """How many tensors of the second run of an open session outlive it; what the first prepares once may stay."""
    with case.host.session(case.pipe, request) as session:

        def run() -> None:
            session.pipe(**case.arguments())

        run()
        _nothing_held(session, "a run")
        return _alive_after(run)


def _two_sessions(case: FeatureCase) -> None:
    for _ in range(2):
        with case.session() as session:
            session.pipe(**case.arguments())


def _alive_after(act: Callable[[], None]) -> int:
    """How many of the tensors that ``act`` made are alive when it has returned."""
    gc.freeze()  # what is there already is not looked at again, which makes collecting and counting cheap
    try:
        act()
        gc.collect()
        return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
    finally:
        gc.unfreeze()


def _nothing_held(session: Session, when: str) -> None:
    held = session.held_bytes()
    if held:
        raise Nonconformity(f"{held} bytes of tensors are held after {when}: release them in end().")


@contextmanager
def _untouched(case: FeatureCase, when: str) -> Iterator[None]:
    process, before = ProcessState.capture(), fingerprint(case.pipe, contents=True)
    try:
        yield
    except BaseModified as modified:
        raise Nonconformity(f"after {when}: {modified}") from modified
    for what, lines in (
        ("the base", before.diff(fingerprint(case.pipe, contents=True), run_state=False)),
        ("the process", process.diff(ProcessState.capture())),
    ):
        if lines:
            raise Nonconformity(f"after {when} {what} is not as before: {'; '.join(lines[:3])}.")


def _raises(session: Session, case: FeatureCase, where: str) -> None:
    try:
        session.pipe(**case.arguments())
    except Injected:
        _nothing_held(session, f"an exception at {where}")
    except Exception as error:
        raise Nonconformity(
            f"an exception at {where} came out as {type(error).__name__}: {error}. Let what is not yours pass."
        ) from error
    else:
        raise Nonconformity(f"an exception at {where} was swallowed: the run went on with a wrong result.")


def _spread(count: int) -> list[int]:
    if count <= MOST_CALLS:
        return list(range(1, count + 1))
    return sorted({round(1 + index * (count - 1) / (MOST_CALLS - 1)) for index in range(MOST_CALLS)})


def _expect(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if got.shape != wanted.shape or not torch.allclose(got, wanted, rtol=0.0, atol=0.0, equal_nan=True):
        raise Nonconformity(
            f"{what} is not bit-identical to the same call run first ({_distance(got, wanted)}): state of one run "
            "reaches another. Drop it in begin() and end()."
        )


def _distance(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.shape != other.shape:
        return f"shapes {tuple(one.shape)} and {tuple(other.shape)}"
    return f"largest difference {float((one.float() - other.float()).abs().max()):.3g}"


def _call(
    case: FeatureCase,
    session: Session,
    changes: dict[str, Any],
    got: dict[str, Any],
    name: str,
    step: threading.Barrier,
) -> Callable[[], None]:
    """One run that waits for the other at the end of each step, as long as both go on."""

    def together(*_: Any) -> Any:
        try:
            step.wait(TOGETHER_SECONDS)
        except threading.BrokenBarrierError:
            pass
        return {}

    def call() -> None:
        try:
            got[name] = session.pipe(**case.arguments(**changes), callback_on_step_end=together).frames
        except BaseException as error:
            got[name] = error
        finally:
            step.abort()

    return call


def _in_threads(calls: dict[str, Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
