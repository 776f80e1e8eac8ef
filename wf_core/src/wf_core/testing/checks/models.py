"""Checks of model families and of models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from wf_core.checkpoints import load_quietly
from wf_core.errors import BadInput, BaseModified, Refused
from wf_core.facts.run import RUN_OPTIONS
from wf_core.isolation.fingerprint import fingerprint
from wf_core.kinds.techniques import Technique
from wf_core.manifests.vocabulary import SEAMS
from wf_core.model.seams import Handler, Site
from wf_core.testing.cases import FamilyCase, ModelCase
from wf_core.testing.checks.registry import Nonconformity, NotApplicable, check
from wf_core.testing.watching import Stopped

SAME = "an_empty_session_is_bit_identical"
FEWEST_STEPS = 2
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


class _Kept(Technique):
    """Keeps what blocks and their branches are given and give, as it is and as a copy."""

    def __init__(self, seams: tuple[str, ...]) -> None:
        self._seams = seams
        self.kept: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def handlers(self) -> Mapping[str, Handler]:
        return dict.fromkeys(self._seams, self._keep)

    def _keep(self, inner: Callable[..., Any], site: Site, *args: Any) -> Any:
        output = inner(*args)
        for value in (*args, *(output if isinstance(output, tuple) else (output,))):
            if isinstance(value, torch.Tensor):
                self.kept.append((site.path, value.detach(), value.detach().clone()))
        return output


@check("family")
def an_empty_session_is_bit_identical(case: FamilyCase) -> None:
    """A session with nothing in it gives the pipeline's own output, and leaves the pipeline as it was."""
    plain = case.pipe(**case.arguments()).frames
    before = fingerprint(case.pipe, contents=True)
    try:
        with case.host.session(case.pipe, {}, verify_contents=True) as session:
            first = session.pipe(**case.arguments()).frames
            second = session.pipe(**case.arguments(**case.bench.other)).frames
    except BaseModified as modified:
        changed = "; ".join(modified.differences[:3])
        raise Nonconformity(
            f"{changed}: change what install() is given, and write to none of its tensors."
        ) from None
    other = case.pipe(**case.arguments(**case.bench.other)).frames
    if not (torch.equal(first, plain) and torch.equal(second, other)):
        raise Nonconformity(
            "an empty session differs from the pipeline's own output: the adapter changes the computation."
        )
    lines = before.diff(fingerprint(case.pipe, contents=True), run_state=False)
    if lines:
        raise Nonconformity(f"a session changed the base: {'; '.join(lines[:3])}.")


@check("family", after=(SAME,))
def every_seam_is_there_and_exact(case: FamilyCase) -> None:
    """Each declared seam is called when it is claimed, and a handler that passes everything through changes nothing."""
    family = case.manifest.family
    assert family is not None
    plain = case.pipe(**case.arguments()).frames
    for seam in (seam for seam in family.seams if seam in CALLED):
        through = _Through(seam)
        try:
            with case.host.session(case.pipe, {}, extra={"through": through}) as session:
                ours = session.pipe(**case.arguments()).frames
        except Refused as refused:
            raise Nonconformity(
                f"the seam {seam} is declared, and a technique there is refused ({refused.refusal.one_line()}): wrap "
                "it in install(), or take it out of `seams`."
            ) from None
        if not through.calls:
            raise Nonconformity(
                f"the seam {seam} is declared, and was never called in a run: call what wiring.wrap() gave, or take it "
                "out of `seams`."
            )
        if not torch.equal(ours, plain):
            raise Nonconformity(f"a handler at {seam} that passes everything through changes the output.")


@check("family", after=(SAME,))
def what_goes_between_blocks_is_not_written_to(case: FamilyCase) -> None:
    """Tensors that go in and out of blocks and their branches stay as they are: caches keep them without a copy."""
    family = case.manifest.family
    assert family is not None
    seams = tuple(seam for seam in ("block", "branch", "norm_modulate") if seam in family.seams)
    if not seams:
        raise NotApplicable("it has no seam at or inside its blocks")
    for claimed in dict.fromkeys(
        (seams[:1], seams)
    ):  # blocks whose inner seams nobody claims may be the stock code's
        keeper = _Kept(claimed)
        with case.host.session(case.pipe, {}, extra={"keeper": keeper}) as session:
            session.pipe(**case.arguments())
        for path, tensor, copy in keeper.kept:
            if not torch.equal(tensor.nan_to_num(), copy.nan_to_num()):
                raise Nonconformity(
                    f"a tensor that went in or out of {path} was written to later on: add and multiply out of place."
                )


@check("family", after=(SAME,))
def a_run_that_raises_leaves_nothing(case: FamilyCase) -> None:
    """After an exception in the middle of a run the base is untouched and the next run is right."""
    plain = case.pipe(**case.arguments()).frames
    before = fingerprint(case.pipe, contents=True)

    def abort(*_: Any) -> Any:
        raise Stopped("aborted by a callback")

    with case.host.session(case.pipe, {}, verify_contents=True) as session:
        try:
            session.pipe(**case.arguments(), callback_on_step_end=abort)
        except Stopped:
            pass
        again = session.pipe(**case.arguments()).frames
    if not torch.equal(again, plain):
        raise Nonconformity("the run after an aborted one differs: clear per-call state in release().")
    lines = before.diff(fingerprint(case.pipe, contents=True), run_state=False)
    if lines:
        raise Nonconformity(f"an aborted run changed the base: {'; '.join(lines[:3])}.")


@check("family", after=(SAME,))
def a_closed_session_says_so(case: FamilyCase) -> None:
    """Pipeline and denoisers of a closed session raise when called, and the user's own pipeline still works."""
    session = case.host.session(case.pipe, {})
    pipe = session.pipe
    calls = _calls_of_roots(case, pipe)
    session.close()
    for name, call in {"pipeline": lambda: pipe(**case.arguments()), **calls}.items():
        try:
            call()
        except RuntimeError:
            continue
        raise Nonconformity(f"the {name} of a closed session still runs: cut it loose in uninstall().")
    case.pipe(**case.arguments())


def _calls_of_roots(case: FamilyCase, pipe: Any) -> dict[str, Callable[[], Any]]:
    """For each denoiser of a session's pipeline, its last call in a run, to be made again."""
    assert case.manifest.family is not None
    components = {name: part for name, part in pipe.components.items() if part is not None}
    calls: dict[str, Callable[[], Any]] = {}

    def keep(name: str, root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[name] = torch.no_grad()(partial(root, *args, **kwargs))

    hooks = [
        root.register_forward_pre_hook(partial(keep, name), with_kwargs=True)
        for name, root in case.host.family(case.manifest.family.name).roots(components).items()
    ]
    pipe(**case.arguments())
    for hook in hooks:
        hook.remove()
    return calls


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


@check("model")
def it_opens_and_runs(case: ModelCase) -> None:
    """Loaded with its defaults, an empty session on it is bit-identical to the pipeline itself."""
    if case.model.remote or case.model.profile is not None:
        raise NotApplicable("only a profile of it is here")
    if case.host.catalog.family_plugin(case.model.family) is None:
        raise NotApplicable(f"the family {case.model.family} is not installed beside it")
    pipe = load_quietly(case.host.model_directory(case.model.name), "float32", "cpu")
    call = {
        key: value for key, value in case.model.defaults_dict().items() if key in RUN_OPTIONS and key != "fps"
    }
    call |= {"num_inference_steps": FEWEST_STEPS, "output_type": "latent", "prompt": "a test"}

    def run(on: Any) -> torch.Tensor:
        frames: torch.Tensor = on(**call, generator=torch.Generator("cpu").manual_seed(0)).frames
        return frames

    plain = run(pipe)
    with case.host.session(pipe, {}) as session:
        ours = run(session.pipe)
    if not torch.equal(plain, ours):
        raise Nonconformity(
            f"an empty session on {case.model.name!r} differs from the pipeline's own output."
        )
