"""Discovery: every installed plugin with its state and reason. Reads metadata and manifests, imports nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from wf_core.errors import BadInput
from wf_core.manifests.declarations import FeatureDecl
from wf_core.manifests.manifest import Manifest, ManifestError, NewerManifest
from wf_core.names import did_you_mean, normalise
from wf_core.plugins.consistency import faults_together, own_fault
from wf_core.plugins.distributions import GROUP, Candidate, candidates
from wf_core.plugins.manifest_files import find_files, missing_package
from wf_core.plugins.selection import Selection, Target

STATES = ("available", "unavailable", "blocked", "broken", "incompatible", "ambiguous")


@attrs.frozen
class FeatureState:
    """Whether one feature of a plugin can be used, and why not."""

    feature: FeatureDecl
    state: str
    reason: str


@attrs.frozen
class PluginRecord:
    """One installed plugin. ``name`` is in normal form; ``module`` is the entry point's module.

    ``state`` is what discovery found, until an import fails: then it is "broken" for the rest of the process.
    """

    name: str
    distribution: str
    version: str = ""
    api: int | None = None
    kind: str = ""
    _state: str = attrs.field(default="available", alias="state")
    _reason: str = attrs.field(default="", alias="reason")
    location: str = ""
    module: str = ""
    attribute: str = ""
    manifest: Manifest | None = attrs.field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    _faults: list[str] = attrs.field(factory=list, eq=False, repr=False, alias="faults")

    @property
    def state(self) -> str:
        """One of `STATES`."""
        return "broken" if self._faults else self._state

    @property
    def reason(self) -> str:
        """Why it is not available; "" when it is."""
        return self._faults[0] if self._faults else self._reason

    @property
    def block_with(self) -> str:
        """The word for ``WF_BLOCK`` that blocks this plugin and no other."""
        return f"dist:{normalise(self.distribution)}" if self._state == "ambiguous" else self.name

    def remember_fault(self, reason: str) -> None:
        """Called when an import failed: the plugin is broken from now on."""
        self._faults.append(reason)

    def features(self) -> tuple[FeatureState, ...]:
        """Its features, each with its own state; a plugin that cannot be used takes all of them with it."""
        declared = self.manifest.features if self.manifest is not None else ()
        return tuple(FeatureState(feature, *self.feature_state(feature)) for feature in declared)

    def feature_state(self, feature: FeatureDecl) -> tuple[str, str]:
        """One feature's state and reason."""
        if self.state != "available":
            return self.state, self.reason
        if feature.state:
            return "unavailable", feature.declared_only
        return "available", ""


@attrs.frozen
class Discovery:
    """Every plugin found, sorted by name. ``strict`` is ``WF_STRICT``: broken or ambiguous plugins are errors.

    ``problems`` are what is wrong with WF_BLOCK and WF_ONLY, when the caller has asked to go on despite them.
    """

    plugins: tuple[PluginRecord, ...]
    strict: bool = False
    problems: tuple[str, ...] = ()

    def plugin(self, name: str) -> PluginRecord | None:
        """The plugin of that name in any spelling, or None. Of several claims, a usable one comes first."""
        found = [record for record in self.plugins if record.name == normalise(name)]
        return min(found, key=lambda record: STATES.index(record.state), default=None)

    def suggestion(self, name: str) -> str:
        """``; did you mean X?`` for a plugin name that is not there."""
        return did_you_mean(normalise(name), [record.name for record in self.plugins])

    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests of all available plugins."""
        available = (record for record in self.plugins if record.state == "available")
        return tuple(record.manifest for record in available if record.manifest is not None)

    def strict_faults(self) -> tuple[PluginRecord, ...]:
        """The plugins that make a strict host refuse to work."""
        bad = ("broken", "ambiguous")
        return tuple(record for record in self.plugins if record.state in bad) if self.strict else ()

    def require_sound(self) -> Discovery:
        """This discovery; under ``WF_STRICT``, `BadInput` with one line if a plugin is broken or ambiguous."""
        faults = [f"{record.name} is {record.state}: {record.reason}" for record in self.strict_faults()]
        if faults:
            raise BadInput(f"WF_STRICT: {'; '.join(faults)}")
        return self


def discover(
    path: Sequence[str] | None = None, environ: Mapping[str, str] | None = None, *, tolerant: bool = False
) -> Discovery:
    """Finds every plugin on ``path`` (default ``sys.path``); ``environ`` is read for WF_BLOCK, WF_ONLY, WF_STRICT.

    Never fails because of a plugin. Raises `BadInput` when WF_BLOCK or WF_ONLY names a plugin that is not there;
    when ``tolerant``, the result carries that as one of its ``problems``.
    """
    environ = os.environ if environ is None else environ
    found = [(candidate, _target(candidate)) for candidate in candidates(path)]
    selection = Selection.from_environ(environ, [target for _, target in found])
    if selection.problems and not tolerant:
        raise BadInput("; ".join(selection.problems))
    records = [_record(candidate, target, selection, path) for candidate, target in found]
    records = sorted(_mark_ambiguous(records), key=lambda record: (record.name, record.distribution))
    strict = environ.get("WF_STRICT", "") not in ("", "0")
    return Discovery(tuple(_mark_contradicting(records)), strict, selection.problems)


def _target(candidate: Candidate) -> Target:
    single = len(candidate.entries) == 1 and candidate.entries[0].name
    return Target(candidate.entries[0].name if single else candidate.name, candidate.name)


def _record(
    candidate: Candidate, target: Target, selection: Selection, path: Sequence[str] | None
) -> PluginRecord:
    entry = candidate.entries[0] if len(candidate.entries) == 1 else None
    base = PluginRecord(
        name=normalise(target.plugin),
        distribution=candidate.name,
        version=candidate.version,
        location=str(candidate.root),
        module=entry.module if entry else "",
        attribute=entry.attribute if entry else "",
        notes=candidate.notes,
    )
    blocked = selection.why_blocked(target)
    base = attrs.evolve(base, state="blocked", reason=blocked) if blocked else base
    if candidate.fault:
        return _broken(base, candidate.fault)
    if entry is None:
        names = ", ".join(entry.name for entry in candidate.entries) or "none"
        return _broken(base, f"a plugin has exactly one entry point in {GROUP}, this one has {names}")
    if not entry.name or not entry.module:
        return _broken(base, f"the entry point {entry.name!r} names no module")
    if not all(part.isidentifier() for part in entry.module.split(".")):
        return _broken(base, f"the entry point {entry.name!r} names {entry.module!r}, which is no module")
    return _with_manifest(base, candidate, path)


def _with_manifest(base: PluginRecord, candidate: Candidate, path: Sequence[str] | None) -> PluginRecord:
    found, manifest_path = find_files(base.module, candidate.root, path)
    if not found:
        return _broken(base, f"there is no module {base.module!r}, which its entry point names")
    folder = Path(found) if manifest_path is None else manifest_path
    base = attrs.evolve(base, location=str(folder.parent))
    if manifest_path is None:
        return _broken(base, f"there is no wf-plugin.toml beside {base.module.partition('.')[0]}/__init__.py")
    try:
        manifest = Manifest.load(manifest_path)
    except NewerManifest as error:
        return _set(base, "incompatible", error.problem)
    except ManifestError as error:
        return _broken(base, str(error))
    except Exception as error:  # the readers know every mistake that we know; no other may end the listing
        return _broken(base, f"{manifest_path}: {' '.join(f'{type(error).__name__}: {error}'.split())}")
    base = attrs.evolve(base, api=manifest.api, kind=manifest.kind, manifest=manifest)
    if manifest.name != base.name:
        return _broken(base, f"its manifest says the name {manifest.name!r}, its entry point {base.name!r}")
    fault = own_fault(manifest)
    if fault:
        return _broken(base, fault)
    lacking = missing_package(manifest.packages, path)
    return _set(base, "unavailable", lacking) if lacking else base


def _broken(record: PluginRecord, reason: str) -> PluginRecord:
    return _set(record, "broken", reason)


def _set(record: PluginRecord, state: str, reason: str) -> PluginRecord:
    """The state, unless the plugin is blocked: what the user has blocked is not judged."""
    return record if record.state == "blocked" else attrs.evolve(record, state=state, reason=reason)


def _mark_ambiguous(records: list[PluginRecord]) -> list[PluginRecord]:
    claims: dict[str, list[PluginRecord]] = {}
    for record in records:
        if record.state != "blocked":
            claims.setdefault(record.name, []).append(record)
    marked = []
    for record in records:
        same = claims.get(record.name, [])
        rival = len(same) > 1 and record.state != "blocked"
        marked.append(attrs.evolve(record, state="ambiguous", reason=_rivals(same)) if rival else record)
    return marked


def _mark_contradicting(records: list[PluginRecord]) -> list[PluginRecord]:
    """What cannot be used takes no part. A usable plugin's name is its alone: others would be ambiguous."""
    usable = {
        record.name: record.manifest
        for record in records
        if record.state == "available" and record.manifest is not None
    }
    faults = faults_together(usable)
    return [
        _broken(record, faults[record.name])
        if record.state == "available" and record.name in faults
        else record
        for record in records
    ]


def _rivals(same: list[PluginRecord]) -> str:
    names = sorted(record.distribution for record in same)
    distinct = sorted({normalise(name) for name in names})
    claim = f"claimed by {' and '.join(names)}"
    if len(distinct) == 1:
        return f"{claim}, two spellings of one distribution name: uninstall one of them"
    return f"{claim}: block one with " + " or ".join(f"WF_BLOCK=dist:{name}" for name in distinct)
