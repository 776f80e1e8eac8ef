"""Checks of model families and of models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from wf_core.errors import BadInput
from wf_core.facts.run import RUN_OPTIONS
from wf_core.isolation.fingerprint import fingerprint
from wf_core.kinds.techniques import Technique
from wf_core.manifests.vocabulary import SEAMS
from wf_core.model.seams import Handler, Site
from wf_core.testing.cases import FamilyCase, ModelCase
from wf_core.testing.checks.registry import Nonconformity, NotApplicable, check
from wf_core.testing.watching import Injected

CALLED = tuple(name for name in SEAMS if name not in ("placement", "modulation", "scheduler", "vae.encode"))


class _Through(Technique):
    """Claims one seam and passes everything through; counts the calls."""

    def __init__(self, seam: str) -> None:
        self._seam = seam
        self.calls = 0

    def handlers(self) -> Mapping[str, Handler]:
        return {self._seam: self._through}

    def _through(self, inner: Callable[..., Any], site: Site, *args: Any) -> Any:
        self.calls += 1
        return inner(*args)


@check("family")
def an_empty_session_is_bit_identical(case: FamilyCase) -> None:
    """A session with nothing in it gives the pipeline's own output, and leaves the pipeline as it was."""
    plain = case.pipe(**case.arguments()).frames
    before = fingerprint(case.pipe, contents=True)
    with case.host.session(case.pipe, {}, verify_contents=True) as session:
        first = session.pipe(**case.arguments()).frames
        second = session.pipe(**case.arguments(**case.bench.other)).frames
    other = case.pipe(**case.arguments(**case.bench.other)).frames
    if not (torch.equal(first, plain) and torch.equal(second, other)):
        raise Nonconformity(
            "an empty session differs from the pipeline's own output: the adapter changes the computation."
        )
    lines = before.diff(fingerprint(case.pipe, contents=True), run_state=False)
    if lines:
        raise Nonconformity(f"a session changed the base: {'; '.join(lines[:3])}.")


@check("family")
def every_seam_is_there_and_exact(case: FamilyCase) -> None:
    """Each declared seam is called when it is claimed, and a handler that passes everything through changes nothing."""
    family = case.manifest.family
    assert family is not None
    plain = case.pipe(**case.arguments()).frames
    for seam in (seam for seam in family.seams if seam in CALLED):
        through = _Through(seam)
        with case.host.session(case.pipe, {}, extra={"through": through}) as session:
            ours = session.pipe(**case.arguments()).frames
        if not through.calls:
            raise Nonconformity(f"the seam {seam} is declared, and was never called in a run.")
        if not torch.equal(ours, plain):
            raise Nonconformity(f"a handler at {seam} that passes everything through changes the output.")


@check("family")
def a_run_that_raises_leaves_nothing(case: FamilyCase) -> None:
    """After an exception in the middle of a run the base is untouched and the next run is right."""
    plain = case.pipe(**case.arguments()).frames
    before = fingerprint(case.pipe, contents=True)

    def abort(*_: Any) -> Any:
        raise Injected("aborted by a callback")

    with case.host.session(case.pipe, {}, verify_contents=True) as session:
        try:
            session.pipe(**case.arguments(), callback_on_step_end=abort)
        except Injected:
            pass
        again = session.pipe(**case.arguments()).frames
    if not torch.equal(again, plain):
        raise Nonconformity("the run after an aborted one differs: clear per-call state in release().")
    lines = before.diff(fingerprint(case.pipe, contents=True), run_state=False)
    if lines:
        raise Nonconformity(f"an aborted run changed the base: {'; '.join(lines[:3])}.")


@check("family")
def a_closed_session_says_so(case: FamilyCase) -> None:
    """The copy of a closed session raises when it is called, and the pipeline itself still works."""
    session = case.host.session(case.pipe, {})
    pipe = session.pipe
    session.close()
    try:
        pipe(**case.arguments())
    except RuntimeError:
        case.pipe(**case.arguments())
    else:
        raise Nonconformity("the pipeline of a closed session still runs: cut it loose in uninstall().")


@check("model", needs_code=False)
def the_model_can_be_judged(case: ModelCase) -> None:
    """Its family is known, its defaults are arguments of a call, and the host finds facts about it."""
    unknown = sorted(set(case.model.defaults) - {*RUN_OPTIONS, "fps", "dtype", "calibration_prompts"})
    if unknown:
        raise Nonconformity(
            f"model {case.model.name!r} has defaults that no call takes: {', '.join(unknown)}."
        )
    if case.model.remote:
        raise NotApplicable("it is served remotely")
    try:
        facts = case.host.facts(case.model.name)
    except BadInput as error:
        raise Nonconformity(f"model {case.model.name!r}: {error}.") from None
    if facts.get("model.family") != case.model.family:
        raise Nonconformity(
            f"model {case.model.name!r} says the family {case.model.family!r}, its files say "
            f"{facts.get('model.family')!r}."
        )


@check("model")
def its_files_are_there(case: ModelCase) -> None:
    """The directory that the manifest or the hook names is a checkpoint in diffusers layout."""
    if case.model.remote or case.model.profile is not None:
        raise NotApplicable("only a profile of it is here")
    directory = case.host.model_directory(case.model.name)
    if not os.path.isfile(directory / "model_index.json"):
        raise Nonconformity(f"{directory} holds no model_index.json.")
