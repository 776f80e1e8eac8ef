"""All checks of one plugin, one after another: what ``wf check`` prints and the conformance classes assert."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import attrs

from wf_core.errors import Refused
from wf_core.manifests.vocabulary import MODEL_KINDS
from wf_core.plugins.discovery import PluginRecord
from wf_core.testing.cases import TOY, FamilyCase, FeatureCase, ModelCase, PluginCase, not_here
from wf_core.testing.checks import Check, Nonconformity, NotApplicable, check_named, checks_for
from wf_core.testing.hosts import record_of

State = Literal["passed", "failed", "not applicable"]


@attrs.frozen
class Result:
    """What one check said about one subject (a feature, a model, or "" for the plugin).

    ``waits`` names the check that failed before it, so that this one was not made.
    """

    check: Check
    subject: str
    state: State
    message: str = ""
    seconds: float = 0.0
    waits: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "check": self.check.name,
            "says": self.check.says,
            "subject": self.subject,
            "state": self.state,
            "message": self.message,
            "seconds": round(self.seconds, 3),
        }


def implemented(record: PluginRecord) -> bool:
    """Whether the plugin has code to check: a feature, a family or a model that is not only declared."""
    manifest = record.manifest
    if manifest is None:
        return False
    if manifest.family is not None:
        return not manifest.family.state
    if manifest.kind in MODEL_KINDS:
        return True
    return any(not feature.state for feature in manifest.features)


def families_beside(families: Iterable[PluginRecord]) -> tuple[PluginRecord, ...]:
    """The families to check a technique with: those that are given and can be opened, then the toy family."""
    usable = [r for r in families if r.manifest and r.manifest.family and not r.manifest.family.state]
    return (*usable, record_of(TOY))


def subjects(
    record: PluginRecord,
    beside: tuple[PluginRecord, ...],
    check: Check,
    trials: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[tuple[str, Any]]:
    """What a check is run on: (name, case), one for each feature or model that it is about."""
    manifest = record.manifest
    assert manifest is not None
    given = trials or {}
    if check.about == "plugin":
        yield "", PluginCase(record, beside, trials=given)
    elif check.about == "family":
        yield "", FamilyCase(record, ())
    elif check.about == "model":
        yield from ((model.name, ModelCase(record, beside, model=model)) for model in manifest.models)
    else:
        for feature in manifest.features:
            if not (check.needs_code and feature.state):
                yield feature.name, FeatureCase(record, beside, feature=feature, trials=given)


def apply(check: Check, case: Any, subject: str = "") -> Result:
    """What one check says of one subject, asked once for each case. It waits for the checks that come before it."""
    if check.name not in case.found:
        earlier = [apply(check_named(name), case, subject) for name in check.after]
        failed = [r.waits or r.check.name for r in earlier if r.state == "failed" or r.waits]
        if failed:
            why = f"{failed[0]} fails, and comes first: this check would judge by what is wrong already"
            case.found[check.name] = Result(check, subject, "not applicable", why, waits=failed[0])
        else:
            case.found[check.name] = _run(check, case, subject)
    result: Result = case.found[check.name]
    return result


def _run(check: Check, case: Any, subject: str) -> Result:
    """Runs one check. What the plugin raises is a failure too, and told as it was raised."""
    started = time.perf_counter()

    def result(state: State, message: str = "") -> Result:
        return Result(check, subject, state, message, time.perf_counter() - started)

    try:
        check.run(case)
    except Nonconformity as found:
        return result("failed", str(found))
    except NotApplicable as why:
        return result("not applicable", str(why))
    except Refused as refused:
        here = not_here(refused)
        return result("not applicable", here) if here else result("failed", refused.refusal.one_line())
    except Exception as error:
        told = " ".join((str(error), *getattr(error, "__notes__", ())))
        return result("failed", f"it raised {type(error).__name__}: {' '.join(told.split())}")
    return result("passed")


def examine(record: PluginRecord, beside: tuple[PluginRecord, ...]) -> Iterator[Result]:
    """Every check that applies to the plugin's kind, on every subject; a case is shared by the checks of a feature."""
    assert record.manifest is not None
    cases: dict[tuple[str, str], Any] = {}
    for check in checks_for(record.manifest.kind, implemented=implemented(record)):
        for subject, case in subjects(record, beside, check):
            yield apply(check, cases.setdefault((check.about, subject), case), subject)
