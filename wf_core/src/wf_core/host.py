"""The host: discovered plugins, facts, plans and sessions. An object; there is no module-level host."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from wf_core import hookspecs
from wf_core.errors import BadInput, PluginFault, Refused
from wf_core.facts import Facts
from wf_core.facts.device import device_facts, with_machine
from wf_core.facts.machines import THIS, machine_profile, world_facts
from wf_core.facts.model import (
    facts_from_directory,
    facts_from_name,
    facts_from_pipeline,
    facts_from_profile,
    official_facts,
)
from wf_core.facts.process import process_facts
from wf_core.facts.run import run_facts
from wf_core.kinds.variants import VariantStore
from wf_core.names import did_you_mean
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import Discovery, PluginRecord, discover
from wf_core.plugins.loading import load_plugin
from wf_core.plugins.manifest_files import installed_version
from wf_core.resolving.environment import request_from_environment
from wf_core.resolving.judging import TRIED
from wf_core.resolving.plan import Plan
from wf_core.resolving.rejudging import refuse
from wf_core.resolving.resolve import resolve
from wf_core.resolving.saved import changed_since, plan_from_json
from wf_core.sessions.open_sessions import alone

if TYPE_CHECKING:
    from wf_core.kinds.scoring import PromptScorer
    from wf_core.kinds.techniques import Technique
    from wf_core.manifests.manifest import ModelDecl
    from wf_core.model.family import ModelFamily
    from wf_core.sessions.session import Session

TRIED_WITH = ("device.type", "device.sm", "model.dtype", "model.head_dim")
"""The facts that an attempt to use a feature says something about."""
FEW_NAMES = 8
OTHER_IDS = "; `wf list-plugins` lists the names, and with --family FAMILY any other id can be judged"
Base = Any
"""A diffusers pipeline, a bare transformer of a known family, a checkpoint directory, or a registered model's name."""


class Host:
    """Resolves requests and opens sessions with the plugins of one discovery.

    Nothing is imported when a host is made; a plugin's code is imported when a session needs it.

    ``variants`` holds what features made from weights (packed, cast), shared by the sessions that need it. Up to
    ``variant_budget`` bytes are kept for later sessions when the last one closes, by default none;
    ``variants.release()`` lets them go.
    """

    def __init__(
        self, discovery: Discovery, *, environ: Mapping[str, str] | None = None, variant_budget: int = 0
    ) -> None:
        self.discovery = discovery
        self._environ = dict(environ or {})
        self.catalog = Catalog.of(discovery)
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._families: dict[str, ModelFamily] = {}
        self._loading = threading.Lock()
        self._failures: dict[tuple[Any, ...], str] = {}
        self.variants = VariantStore(variant_budget)

    @classmethod
    def discover(
        cls, path: Sequence[str] | None = None, *, env: bool = False, variant_budget: int = 0
    ) -> Host:
        """A host of every plugin on ``path`` (``sys.path`` by default); ``WF_BLOCK`` and ``WF_ONLY`` count.

        With ``env`` the ``WORLDFOUNDRY_*`` variables are read now, and stand for the keys that a request does not give.

        Raises ``BadInput`` when one of them names a plugin that is not there, and under ``WF_STRICT=1`` when a plugin
        is broken or ambiguous.
        """
        environ = os.environ if env else None
        return cls(discover(path).require_sound(), environ=environ, variant_budget=variant_budget)

    @property
    def plugins(self) -> tuple[PluginRecord, ...]:
        return self.discovery.plugins

    # --- facts and plans ---------------------------------------------------------------------------------------

    def facts(
        self,
        base: Base,
        run: Mapping[str, Any] | None = None,
        *,
        family: str | None = None,
        device: str = THIS,
        world: int | None = None,
        process_group: bool | None = None,
    ) -> Facts:
        """What is known about the model, the device, the process and, as far as given, the run.

        For a directory or a registered name only configs and safetensors headers are read, for a profile nothing.
        With ``family`` a text that is neither is taken as the id of a model of that family, about which nothing else
        is known. ``device`` is this machine, or the name of a device profile; ``world`` is the number of processes of
        the run to judge, with an initialised ``process_group`` where it is above 1.
        """
        if device == THIS:
            facts = with_machine(self._model_facts(base, family), self._machine)
            facts = facts.merged(self._tried(facts))
        else:
            facts = self._model_facts(base, family).merged(machine_profile(device, self._machine))
        facts = facts.merged(world_facts(world, process_group))
        return facts.merged(run_facts(run)) if run else facts

    def resolve(
        self,
        base: Base,
        request: Mapping[str, Any],
        *,
        run: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        family: str | None = None,
        device: str = THIS,
        world: int | None = None,
        process_group: bool | None = None,
    ) -> Plan:
        """The plan of a request, or ``Refused`` with every reason. Loads no weights and imports no plugin.

        ``run`` gives what is already known of the call (``height``, ``num_frames``, ``num_inference_steps`` ...);
        ``facts`` overrides or adds facts by name; the rest is as for `facts`.
        """
        if facts is not None and not isinstance(facts, Mapping):
            raise BadInput(f"facts= must be a mapping of fact names to values, not {type(facts).__name__}")
        known = self.facts(base, run, family=family, device=device, world=world, process_group=process_group)
        if facts:
            known = known.with_(facts, source="the caller")
        own_family = str(known.get("model.family") or "")
        asked = request_from_environment(
            self._environ, request, lambda key: self.catalog.canonical(key, own_family)
        )
        return resolve(asked, known, self.catalog)

    def load_plan(self, saved: Mapping[str, Any]) -> Plan:
        """The plan of `Plan.to_json`, or of the answer of ``wf resolve --json``.

        Raises `BadInput` for what is no plan, and `Refused` when the installed plugins are not those that it was made
        with, or declare something else by now.
        """
        plan = plan_from_json(saved)
        refuse(plan, changed_since(plan, self.catalog))
        return plan

    # --- sessions ----------------------------------------------------------------------------------------------

    def session(
        self,
        base: Base,
        request: Mapping[str, Any] | Plan | None = None,
        *,
        run: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        verify_contents: bool = False,
        wait: float = 0.0,
        extra: Mapping[str, Technique] | None = None,
    ) -> Session:
        """Open a session on a live pipeline (or bare transformer), which is never written to.

        Raises ``Refused``, ``CannotCopy``, ``PluginFault``, or ``Busy`` when process-wide state is held by another
        session for longer than ``wait`` seconds. ``verify_contents`` also compares every weight's contents at close.
        ``extra`` adds techniques that no plan names (a calibrator), by name.
        """
        from wf_core.sessions.session import Session

        if isinstance(base, str | Path):
            raise BadInput(
                f"a session needs a loaded pipeline, not {str(base)!r}; load it with from_pretrained first"
            )
        if isinstance(request, Plan) and run is not None:
            raise BadInput(
                "run= belongs to resolving, and this request is a plan already; pass run= to resolve"
            )
        opening = partial(Session, self, base, contents=verify_contents, wait=wait, extra=extra, facts=facts)
        if isinstance(request, Plan):
            return opening(request)
        while True:  # ends: each turn rules out one feature more, or raises
            failed = len(self._failures)
            plan = self.resolve(base, request or {}, run=run, facts=facts)
            try:
                return opening(plan)
            except Refused:
                if len(self._failures) == failed:
                    raise

    def remember_failure(self, feature: str, why: str, base: Base) -> None:
        """A feature was tried on this machine for a base and cannot be used: for models of that dtype and head size it
        is refused with the reason from now on, and what leaves the choice to the host passes it over.
        ``forget_failures`` tries anew.
        """
        facts = self.facts(base)
        self._failures[feature, *(facts.get(name) for name in TRIED_WITH)] = why

    def forget_failures(self) -> None:
        """Forget what failed when it was tried, for instance after a package was installed."""
        self._failures.clear()

    def _tried(self, facts: Facts) -> Facts:
        like = tuple(facts.get(name) for name in TRIED_WITH)
        failures = dict(self._failures).items()  # another thread may add to them
        tried = {TRIED + key[0]: why for key, why in failures if key[1:] == like}
        return Facts.of(tried, "an attempt to use it")

    # --- plugins -----------------------------------------------------------------------------------------------

    def call_hook(self, plugin: str, hook: str, **arguments: Any) -> Any:
        """Call one hook of one plugin, importing the plugin if need be; a failure names the plugin."""
        caller = self._caller(plugin, hook)
        if not caller.get_hookimpls():
            raise PluginFault(
                plugin, hook, "the plugin declares a feature of this kind but does not implement the hook"
            )
        try:
            return caller(**arguments)
        except (Exception, SystemExit) as error:
            if isinstance(error, hookspecs.PASSED_ON):
                raise
            raise PluginFault(plugin, hook, f"{type(error).__name__}: {error}") from error

    def implements(self, plugin: str, hook: str) -> bool:
        """Whether a plugin implements a hook; it is imported if need be."""
        return bool(self._caller(plugin, hook).get_hookimpls())

    def _caller(self, plugin: str, hook: str) -> pluggy.HookCaller:
        """The hook on this one plugin, which is imported if need be; without implementations where it has none."""
        module = self._load(plugin)
        others = [other for other in self._manager.get_plugins() if other is not module]
        return self._manager.subset_hook_caller(hook, others)

    def family(self, name: str) -> ModelFamily:
        """The adapter of a family, by the family's name."""
        if name not in self._families:
            record = self.catalog.family_plugin(name)
            if record is None:
                raise BadInput(f"no installed plugin provides the model family {name!r}")
            self._families[name] = self.call_hook(record.name, "wf_model_family")
        return self._families[name]

    def _load(self, plugin: str) -> Any:
        record = next((r for r in self.plugins if r.name == plugin), None)
        if record is None or record.state != "available":
            why = record.reason if record else "not installed"
            raise PluginFault(plugin, "import", why)
        with self._loading:
            module = self._manager.get_plugin(plugin)
            if module is None:
                module = load_plugin(record, alone=alone())
                try:
                    self._manager.register(module, plugin)
                except pluggy.PluginValidationError as error:
                    raise PluginFault(plugin, "registration", " ".join(str(error).split())) from error
        return module

    # --- models ------------------------------------------------------------------------------------------------

    def model(self, name: str) -> ModelDecl | None:
        """The declaration of a registered model, by name or alias."""
        return self.catalog.model(name)

    def model_directory(self, model: str | Path) -> Path:
        """The checkpoint directory of a registered name, or the directory given. ``BadInput`` if there is none."""
        declared = self.catalog.model(str(model))
        if declared is None:
            path = Path(model)
            if not os.path.isdir(path):
                names = self.catalog.model_names()
                few = (
                    f"; registered are: {', '.join(names) or 'none'}"
                    if len(names) <= FEW_NAMES
                    else OTHER_IDS
                )
                hint = did_you_mean(str(model), names, few)
                raise BadInput(f"no model {str(model)!r}: neither a directory nor a registered name{hint}")
            return path
        if declared.path:
            return self.catalog.model_directory(declared)
        if declared.remote:
            raise BadInput(
                f"{declared.name} is served remotely by its publisher: there are no files of it to load"
            )
        if declared.profile is not None:
            raise BadInput(
                f"of {declared.name} only a profile is known, not its files; give its checkpoint's directory"
            )
        plugin = self.catalog.model_plugin(declared.name).name
        return Path(self.call_hook(plugin, "wf_model_source", name=declared.name))

    def prompt_scorer(self, model: str) -> PromptScorer | None:
        """What judges clips of a registered model by their prompts; None where its plugin offers nothing."""
        declared = self.catalog.model(model)
        if declared is None:
            return None
        plugin, hook = self.catalog.model_plugin(declared.name).name, "wf_prompt_scorer"
        if not self.implements(plugin, hook):
            return None
        scorer: PromptScorer | None = self.call_hook(plugin, hook, name=declared.name)
        return scorer

    def _model_facts(self, base: Base, family: str | None) -> Facts:
        manifests = self.catalog.manifests
        if not isinstance(base, str | Path):
            return self._with_official(facts_from_pipeline(base, manifests))
        declared = self.catalog.model(str(base)) if not os.path.isdir(base) else None
        if declared is not None and declared.family != (family or declared.family):
            raise BadInput(f"{base} is a model of the family {declared.family}, not {family}")
        if declared is not None and not declared.path:  # where its files lie, only the plugin's code knows
            return facts_from_profile(declared, manifests)
        if declared is None and family is not None and not os.path.isdir(base):
            return facts_from_name(str(base), family, self.catalog.family(family))
        return self._with_official(facts_from_directory(self.model_directory(base), manifests))

    def _with_official(self, facts: Facts) -> Facts:
        """Beside the model's own facts, what the publisher of a model of that id runs."""
        return official_facts(self.catalog.model(str(facts.get("model.id") or ""))).merged(facts)

    @cached_property
    def _machine(self) -> Facts:
        """Facts of the device and the process, read once per host."""
        return device_facts().merged(process_facts(self.catalog.packages()))

    @cached_property
    def versions(self) -> Mapping[str, str]:
        """Versions of what can change a result, for the report."""
        names = ["wf-core", "torch", "diffusers", "transformers"]
        names += [record.distribution for record in self.plugins if record.state == "available"]
        return {name: found for name in names if (found := installed_version(name))}
