"""Checks of the plugin as a package: how it is imported, what it implements, and that it works alone."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

from wf_core.errors import WfError
from wf_core.hookspecs import HOOK_OF_KIND
from wf_core.manifests.vocabulary import MODEL_KINDS
from wf_core.testing.cases import FeatureCase, PluginCase, benches, trial_of
from wf_core.testing.checks.registry import CAN_BE_ASKED_FOR, Nonconformity, NotApplicable, check
from wf_core.testing.child import run_children, task, warm_up

HEAVY = ("torch", "diffusers", "transformers", "numpy")
_LOOK = (
    "import importlib, sys\n"
    "from wf_core.isolation.guard import ProcessState\n"
    "before = ProcessState.capture()\n"
    f"had = [name for name in {HEAVY!r} if name in sys.modules]\n"
    "importlib.import_module(sys.argv[1])\n"
    f"print([name for name in {HEAVY!r} if name in sys.modules and name not in had])\n"
    "print(before.diff(ProcessState.capture()))\n"
)


@check("plugin")
def importing_it_is_cheap_and_changes_nothing(case: PluginCase) -> None:
    """Importing the top-level package loads no torch and changes nothing in the process."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, case.record.module], capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Nonconformity(f"importing {case.record.module} fails: {last}.")
    loaded, changed = done.stdout.strip().splitlines()[-2:]
    if loaded != "[]":
        raise Nonconformity(
            f"importing {case.record.module} loads {loaded.strip('[]')}: import it inside the hook, so that programs "
            "that only look at the plugin stay fast."
        )
    if changed != "[]":
        raise Nonconformity(f"importing {case.record.module} changes the process: {changed.strip('[]')}.")


@check("plugin")
def every_hook_is_implemented(case: PluginCase) -> None:
    """For the kind of each feature (and of the plugin) there is the hook, marked with hookimpl."""
    module = importlib.import_module(case.record.module)
    kinds = {feature.kind for feature in case.manifest.features if not feature.state}
    if case.manifest.kind == "model-family":
        kinds.add("model-family")
    if any(not (model.path or model.profile or model.remote) for model in case.manifest.models):
        kinds.add("model-source")
    for kind in sorted(kinds):
        hook = HOOK_OF_KIND[kind]
        if not hasattr(getattr(module, hook, None), "wf_impl"):
            raise Nonconformity(
                f"{case.record.module} has no function {hook} marked with wf_core.api.hookimpl, which the kind {kind} "
                "needs."
            )


@check("plugin", after=(*CAN_BE_ASKED_FOR, "importing_it_is_cheap_and_changes_nothing"))
def importing_it_changes_no_result(case: PluginCase) -> None:
    """A pipeline that is there already computes the same, with the same classes, after the plugin is imported."""
    if case.manifest.kind in MODEL_KINDS:
        raise NotApplicable("it is a model, which other checks run")
    for family, answer in _alone(case).items():
        if "error" in answer:
            raise NotApplicable(f"it does not run beside {family}, as another check says")
        if answer["changed"]:
            raise Nonconformity(
                f"importing {case.record.module} changes what a pipeline of {family} does, before anybody asked for a "
                f"feature: {'; '.join(answer['changed'][:3])}. Move it from the top of the module into the hook or the "
                "technique, and change nothing but the session's copy."
            )


@check("plugin", after=CAN_BE_ASKED_FOR)
def it_works_alone_with_wf_core(case: PluginCase) -> None:
    """In a process where no other plugin but a model family can be imported, each feature runs and takes effect."""
    if case.manifest.kind in MODEL_KINDS:
        raise NotApplicable("it is a model, which other checks run")
    for family, answer in _alone(case).items():
        if "error" in answer:
            raise Nonconformity(f"alone with wf-core and {family} it fails: {answer['error']}.")
    for own in _runnable(case):
        family = own.family.module
        there = _alone(case)[family]["states"].get(own.feature.name, "not turned on")
        here = _state_here(own)
        if there != here != "":
            raise Nonconformity(
                f"alone with wf-core and {family} {own.feature.name} is {there}, and in this process it is {here}: "
                "it leans on something that another package or an earlier run brought."
            )


def _alone(case: PluginCase) -> dict[str, dict[str, Any]]:
    """What a process with the plugin and one family says, by the family's module; made once for a case."""
    if "alone" not in vars(case):
        warm_up(benches(case))  # it loads while this process builds the pipelines
        groups: dict[str, list[FeatureCase]] = {}
        for own in _runnable(case):
            groups.setdefault(own.family.module, []).append(own)
        told = [
            task(
                (case.record.module, family),
                trial_of(cases[0].family),
                [own.request for own in cases],
                {},
                imports=True,
            )
            for family, cases in groups.items()
        ]
        vars(case)["alone"] = dict(zip(groups, run_children(told, benches(case)), strict=True))
    found: dict[str, dict[str, Any]] = vars(case)["alone"]
    return found


def _runnable(case: PluginCase) -> list[FeatureCase]:
    """A case for each implemented feature that this machine can run, on a family that has a bench."""
    own = [
        FeatureCase(case.record, case.beside, feature=feature, trials=case.trials)
        for feature in case.manifest.features
        if not feature.state
    ]
    return [one for one in own if one.runs_here]


def _state_here(case: FeatureCase) -> str:
    """What the report says of the feature in this process; "" where it cannot be asked, as other checks say."""
    try:
        with case.session() as session:
            session.pipe(**case.bench.arguments())
            return str(session.report["effective"].get(case.feature.name, {}).get("state", "not turned on"))
    except WfError:
        return ""
