"""Conformance classes: a plugin's tests subclass the one of its kind, in three lines, and have every check.

    from wf_core.testing import AttentionProviderConformance


    class TestConformance(AttentionProviderConformance):
        plugin = "wf_plugin_attention_mine"

A check is one test, and cannot be taken away silently: a subclass that overrides or removes one fails, unless its
name stands in ``expected_to_fail`` with the reason; then it must fail, and passing is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from wf_core.errors import BadInput
from wf_core.plugins.discovery import PluginRecord
from wf_core.testing.checks import Check, all_checks, checks_for
from wf_core.testing.examination import apply, families_beside, implemented, subjects
from wf_core.testing.hosts import record_of

RESERVED = ("test_nothing_is_taken_away", "test_it_is_of_the_kind", "record", "case")
"""What no class of a plugin's tests may have as its own; Python refuses such a class."""


class Conformance:
    """What every conformance class shares.

    ``plugin`` is the plugin's module, by name. ``families`` are modules of model families to check it with; those that
    are not installed are left out, and the toy family always stands at the end. ``trials`` gives requests, by feature,
    in place of the manifest's.
    """

    kind: ClassVar[str] = ""
    plugin: ClassVar[str] = ""
    families: ClassVar[Sequence[str]] = ("wf_plugin_wan",)
    trials: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    expected_to_fail: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("kind"):  # one of the classes below: it gets its tests
            for check in checks_for(cls.kind, implemented=True):
                setattr(cls, f"test_{check.name}", _test_of(check))
        else:
            own = [
                name for name in RESERVED if inspect.getattr_static(cls, name) is not vars(Conformance)[name]
            ]
            if own:
                raise TypeError(
                    f"{cls.__name__} overrides {', '.join(own)}: the kit could not see what else it changes"
                )

    def test_nothing_is_taken_away(self) -> None:
        """Every check of the kind is there as the kit wrote it, and what is expected to fail is a check."""
        base = next(cls for cls in type(self).__mro__ if cls.__dict__.get("kind"))
        names = [f"test_{check.name}" for check in checks_for(self.kind, implemented=True)]
        changed = [name for name in names if getattr(type(self), name, None) is not getattr(base, name)]
        assert not changed, (
            f"{type(self).__name__} overrides {', '.join(changed)}: a check is not changed. Say in `expected_to_fail` "
            "which one fails, and why."
        )
        unknown = sorted(set(self.expected_to_fail) - {check.name for check in all_checks()})
        assert not unknown, f"expected_to_fail names {', '.join(unknown)}, which is no check"
        assert all(reason.strip() for reason in self.expected_to_fail.values()), (
            "expected_to_fail needs reasons"
        )

    def test_it_is_of_the_kind(self) -> None:
        """The class is that of the plugin's own kind."""
        assert self.record().kind == self.kind, (
            f"{self.plugin} is of the kind {self.record().kind}: use its class, {self.kind} is another"
        )

    @classmethod
    def record(cls) -> PluginRecord:
        """The plugin."""
        if not cls.plugin:
            raise BadInput(f'{cls.__name__} needs plugin = "the module of the plugin"')
        if cls not in _RECORDS:
            _RECORDS[cls] = record_of(cls.plugin)
        return _RECORDS[cls]

    @classmethod
    def case(cls, check: Check, subject: str) -> Any:
        """What a check looks at; shared by the checks of one feature."""
        key = (cls, check.about, subject)
        if key not in _CASES:
            found = dict(subjects(cls.record(), _families(cls), check, cls.trials))
            _CASES.update({(cls, check.about, name): case for name, case in found.items()})
        return _CASES.get(key)


_RECORDS: dict[type, PluginRecord] = {}
_CASES: dict[tuple[type, str, str], Any] = {}


def _families(cls: type[Conformance]) -> tuple[PluginRecord, ...]:
    found = []
    for module in cls.families:
        try:
            found.append(record_of(module))
        except ImportError:
            continue
    return families_beside(found)


def _test_of(check: Check) -> Callable[..., None]:
    """One check as a test; it is run for every subject that the plugin has."""

    def test(self: Conformance) -> None:
        cls = type(self)
        names = [name for name, _ in subjects(cls.record(), _families(cls), check, cls.trials)]
        if not names or (check.needs_code and not implemented(cls.record())):
            pytest.skip("nothing of the plugin is implemented that this check is about")
        results = [apply(check, cls.case(check, name), name) for name in names]
        failed = [f"{r.subject or cls.record().name}: {r.message}" for r in results if r.state == "failed"]
        why = cls.expected_to_fail.get(check.name)
        if why is not None:
            assert failed, (
                f"{check.name} is expected to fail ({why}) and does not: take it out of expected_to_fail"
            )
            pytest.xfail(why)
        assert not failed, "\n".join(failed)
        if all(result.state == "not applicable" for result in results):
            pytest.skip(results[0].message)

    test.__name__ = test.__qualname__ = f"test_{check.name}"
    test.__doc__ = check.says
    return test


class AttentionProviderConformance(Conformance):
    """A plugin of kind attention-provider."""

    kind = "attention-provider"


class SparseKernelConformance(Conformance):
    """A plugin of kind sparse-kernel."""

    kind = "sparse-kernel"


class FeatureCacheConformance(Conformance):
    """A plugin of kind feature-cache."""

    kind = "feature-cache"


class VaeDecoderConformance(Conformance):
    """A plugin of kind vae-decoder."""

    kind = "vae-decoder"


class FusionConformance(Conformance):
    """A plugin of kind fusion."""

    kind = "fusion"


class ExecutionModeConformance(Conformance):
    """A plugin of kind execution-mode."""

    kind = "execution-mode"


class ModelFamilyConformance(Conformance):
    """A plugin of kind model-family."""

    kind = "model-family"


class ModelSourceConformance(Conformance):
    """A plugin of kind model-source."""

    kind = "model-source"


CLASSES: Mapping[str, type[Conformance]] = {
    cls.kind: cls
    for cls in (
        AttentionProviderConformance,
        SparseKernelConformance,
        FeatureCacheConformance,
        VaeDecoderConformance,
        FusionConformance,
        ExecutionModeConformance,
        ModelFamilyConformance,
        ModelSourceConformance,
    )
}
"""The kinds that the host can run today, with their classes."""
