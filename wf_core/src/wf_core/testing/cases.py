"""What one check looks at: a plugin, one of its features on a bench, a family, or a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import attrs

from wf_core.errors import Refused
from wf_core.host import Host
from wf_core.manifests.declarations import FeatureDecl, ModelDecl
from wf_core.manifests.manifest import Manifest
from wf_core.model.bench import Bench
from wf_core.plugins.discovery import Discovery, PluginRecord
from wf_core.sessions.session import Session
from wf_core.testing.bench import bench_at
from wf_core.testing.checks.registry import Nonconformity, NotApplicable
from wf_core.testing.watching import WatchedHost
from wf_core.values import thaw

TOY = "wf_core.testing.toy"


def not_here(refused: Refused) -> str:
    """Why this machine cannot run a request; "" when it is refused for another reason than the device."""
    about = [violation for violation in refused.refusal.violations if "device" in violation.involves]
    return f"this machine cannot run it: {about[0].reason}" if about else ""


def benches(case: PluginCase) -> tuple[str, ...]:
    """The places of the benches of all families beside a plugin."""
    families = [record for record in case.beside if record.manifest and record.manifest.family]
    return tuple(trial_of(record) for record in families)


def trial_of(family: PluginRecord) -> str:
    """Where a family's bench is."""
    assert family.manifest is not None and family.manifest.family is not None
    return family.manifest.family.trial


@attrs.frozen(slots=False)
class PluginCase:
    """One plugin, and the plugins (families) beside which it is checked.

    ``trials`` are requests, by feature, that a test gives in place of the manifest's. ``found`` is what checks have
    said of it, by name.
    """

    record: PluginRecord
    beside: tuple[PluginRecord, ...] = ()
    trials: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict, kw_only=True)
    found: dict[str, Any] = attrs.field(factory=dict, init=False, repr=False, eq=False)

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""
        assert self.record.manifest is not None
        return self.record.manifest

    @cached_property
    def host(self) -> Host:
        """A host of the plugin and those beside it, and of nothing else."""
        return Host(self.discovery)

    @cached_property
    def discovery(self) -> Discovery:
        """What that host knows."""
        return Discovery(tuple(sorted((self.record, *self.beside), key=lambda record: record.name)))


@attrs.frozen(slots=False)
class FeatureCase(PluginCase):
    """One feature of the plugin on the bench of one family."""

    feature: FeatureDecl = attrs.field(kw_only=True)

    @property
    def request(self) -> dict[str, Any]:
        """The request that turns the feature on here: the test's own, else the manifest's trial, else its example."""
        own = self.trials.get(self.feature.name)
        chosen = own if own is not None else self.feature.trial or self.feature.example
        return {key: thaw(value) for key, value in chosen.items()}

    @cached_property
    def family(self) -> PluginRecord:
        """The first family beside it that the feature supports and whose models can be opened."""
        for record in self.beside:
            family = record.manifest.family if record.manifest is not None else None
            if (
                family is not None
                and family.trial
                and not family.state
                and self.feature.supports(family.name)
            ):
                return record
        names = ", ".join(self.feature.families)
        raise NotApplicable(f"no family beside it has a bench for {self.feature.name} (it supports {names})")

    @cached_property
    def bench(self) -> Bench:
        """The family's bench."""
        return bench_at(trial_of(self.family))

    @cached_property
    def pipe(self) -> Any:
        """The bench's pipeline, shared by the checks of one case: no check may leave anything on it."""
        return self.bench.pipeline()

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run the feature; what is refused for another reason is no answer to that."""
        try:
            self.host.resolve(self.pipe, self.request)
        except Refused as refused:
            return not not_here(refused)
        return True

    @property
    def changes(self) -> dict[str, Any]:
        """Changes of the bench's call: nothing is decoded unless the feature stands at the VAE."""
        return {} if any(seam.startswith("vae") for seam in self.feature.seams) else dict(self.bench.latent)

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """Arguments of one short call."""
        return self.bench.arguments(**{**self.changes, **changes})

    def watched(self) -> WatchedHost:
        """A host that watches what the techniques do."""
        return WatchedHost(self.discovery)

    @contextmanager
    def session(self, host: Host | None = None, **options: Any) -> Iterator[Session]:
        """A session with the feature on; what the pipeline does by itself is noted before there is any."""
        self.plain  # noqa: B018
        with (host or self.host).session(self.pipe, self.request, **options) as session:
            yield session

    @cached_property
    def plain(self) -> Any:
        """The output of the short call without any plugin."""
        return self.pipe(**self.arguments()).frames

    @cached_property
    def alone(self) -> Any:
        """The output of the short call with the feature on, run first in a session of its own."""
        with self.session() as session:
            return session.pipe(**self.arguments()).frames

    def claim(self, session: Session) -> Mapping[str, Any]:
        """What the last report says of the feature."""
        effective = session.report["effective"]
        if self.feature.name not in effective:
            raise Nonconformity(
                f"the request {self.request} did not turn {self.feature.name} on; the report knows "
                f"{', '.join(effective) or 'no feature'}. Correct `trial` (or `example`) in the manifest."
            )
        claim: Mapping[str, Any] = effective[self.feature.name]
        return claim


@attrs.frozen(slots=False)
class FamilyCase(PluginCase):
    """A model family on its own bench."""

    @cached_property
    def bench(self) -> Bench:
        """The family's bench."""
        family = self.manifest.family
        if family is None or not family.trial:
            raise Nonconformity(
                'a family needs `trial = "package.module:function"` in [family], which gives a wf_core.testing.Bench: '
                "without one nothing about it, and no technique on it, can be checked."
            )
        return bench_at(family.trial)

    @cached_property
    def pipe(self) -> Any:
        """Its pipeline."""
        return self.bench.pipeline()

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """Arguments of one short call."""
        return self.bench.arguments(**changes)


@attrs.frozen(slots=False)
class ModelCase(PluginCase):
    """One model that the plugin brings."""

    model: ModelDecl = attrs.field(kw_only=True)
