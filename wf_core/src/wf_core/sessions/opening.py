"""Open a session: judge again, copy, build the techniques, install them. A failure leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import frozen

from wf_core.errors import Ineligible, PluginFault
from wf_core.hookspecs import HOOK_OF_KIND
from wf_core.isolation.copying import copy_module, copy_pipeline
from wf_core.kinds.counters import FeatureCounters
from wf_core.kinds.techniques import Technique
from wf_core.kinds.variants import Variants
from wf_core.manifests.effects import effect_name
from wf_core.model.seams import SEAMS, Handler, Seams, Site
from wf_core.model.wiring import Wiring
from wf_core.resolving.judging import cannot_be_used
from wf_core.resolving.plan import Violation
from wf_core.resolving.rejudging import refuse
from wf_core.sessions.blame import ask, attribute, each, plugin_of

if TYPE_CHECKING:
    from wf_core.facts import Facts
    from wf_core.host import Host
    from wf_core.model.family import ModelFamily
    from wf_core.resolving.plan import Plan, PlannedFeature

BARE = "transformer"
"""The component name of a base that is a bare transformer."""


@frozen
class Opened:
    """What a session is made of."""

    copy: Any
    is_pipeline: bool
    components: Mapping[str, Any]
    family: ModelFamily
    wiring: Wiring
    techniques: Mapping[str, Technique]


def open_copy(
    host: Host, base: Any, plan: Plan, facts: Facts, extra: Mapping[str, Technique] | None = None
) -> Opened:
    """``extra`` adds techniques that no plan names, such as a calibrator, by name."""
    family = host.family(plan.family)
    techniques = {**build_techniques(host, plan, facts), **(extra or {})}
    components: Mapping[str, Any] = {}
    try:
        copy, components = copy_base(family, base)
        wiring = Wiring(claim_seams(plan, techniques), techniques, effects_of(plan))
        if wiring.seams.claimed(*SEAMS):
            refuse_unavailable(plan, family.unavailable_seams(components), wiring.seams)
        for name, technique in techniques.items():
            prepare(host, base, plan, name, technique, components)
        family.install(components, wiring)
        wiring.bind_schedule()
        refuse_unattached(plan, techniques, wiring.seams)
    except BaseException as error:
        close_all(techniques)
        family.uninstall(components)
        told = attribute(plan, techniques, error)
        if told is error:
            raise
        raise told from error
    return Opened(copy, hasattr(base, "components"), components, family, wiring, techniques)


def prepare(
    host: Host, base: Any, plan: Plan, name: str, technique: Technique, components: Mapping[str, Any]
) -> None:
    """Hand a technique what it works with, and let it prepare. One that finds that it cannot work here is refused, and
    the host remembers it.
    """
    technique.counters = FeatureCounters(name)
    technique.variants = Variants(host.variants, name)
    technique.dense_when_ineligible = plan.host_keys_dict().get("on_ineligible") == "dense"
    try:
        ask(plan, name, "activation", type(None), partial(technique.prepare, components), passing=Ineligible)
    except Ineligible as why:
        host.remember_failure(name, str(why), base)
        feature = plan.feature(name)
        keys = (name,) if feature is None or not feature.switch else (feature.switch, name)
        refuse(plan, [Violation("WF-S003", "forbid", cannot_be_used(name, str(why)), keys)])


def build_techniques(host: Host, plan: Plan, facts: Facts) -> dict[str, Technique]:
    """One technique per planned feature, in composition order, each from the hook of its kind."""
    techniques: dict[str, Technique] = {}
    try:
        for feature in plan.features:
            techniques[feature.name] = _build(host, plan, feature, facts)
    except BaseException:
        close_all(techniques)
        raise
    return techniques


def _build(host: Host, plan: Plan, feature: PlannedFeature, facts: Facts) -> Technique:
    hook = HOOK_OF_KIND[feature.kind]
    technique = host.call_hook(
        feature.plugin, hook, feature=feature.name, options=feature.options_dict(), facts=facts
    )
    if not isinstance(technique, Technique):
        found = type(technique).__name__
        raise PluginFault(
            feature.plugin, hook, f"must return a wf_core.api.Technique for {feature.name!r}, not {found}"
        )
    return technique


def copy_base(family: ModelFamily, base: Any) -> tuple[Any, dict[str, Any]]:
    """The structural copy of a pipeline or bare transformer, and the components that the session owns."""
    if not hasattr(base, "components"):
        copied = copy_module(base, BARE)
        return copied, {BARE: copied}
    owned = family.owned(base)
    copied = copy_pipeline(base, owned)
    return copied, {name: getattr(copied, name) for name in owned if getattr(copied, name, None) is not None}


def effects_of(plan: Plan) -> dict[str, frozenset[str]]:
    """The names of the effects that hold for each planned feature."""
    return {feature.name: frozenset(map(effect_name, feature.effects)) for feature in plan.features}


def claim_seams(plan: Plan, techniques: Mapping[str, Technique]) -> Seams:
    """Every technique's handlers, in composition order; a seam that the manifest does not declare is a fault."""
    seams = Seams()
    declared = {feature.name: feature for feature in plan.features}
    for name, technique in techniques.items():
        handlers = ask(plan, name, "handlers()", Mapping, technique.handlers)
        roles = ask(plan, name, "roles()", (tuple, list, set, frozenset, Mapping), technique.roles)
        for seam, handler in handlers.items():
            if not callable(handler):
                raise PluginFault(
                    plugin_of(plan, name), "handlers()", f"the handler of {seam!r} is not callable"
                )
            feature = declared.get(name)
            if feature is not None and seam not in feature.seams:
                raise PluginFault(
                    feature.plugin, "activation", f"{name!r} claims seam {seam!r}, which is not declared"
                )
            if plan.host_keys_dict().get("on_ineligible") == "dense":
                handler = dense_when_ineligible(technique, seam, handler)
            here = roles.get(seam, ()) if isinstance(roles, Mapping) else roles
            seams.claim(seam, name, handler, here, partial(wanted, plan, name, technique))
    return seams


def wanted(plan: Plan, name: str, technique: Technique, site: Site) -> bool:
    """Whether a technique wants to be put at a site."""
    return ask(plan, name, "wants()", bool, partial(technique.wants, site))


def dense_when_ineligible(technique: Technique, seam: str, handler: Handler) -> Handler:
    """The handler, or for a call that it says it cannot serve the next layer, counted with the reason."""

    def guarded(inner: Callable[..., Any], site: Site, *args: Any) -> Any:
        try:
            return handler(inner, site, *args)
        except Ineligible as why:
            technique.counters.fall_back(seam, str(why))
            return inner(*args)

    return guarded


def refuse_unavailable(plan: Plan, unavailable: Mapping[str, str], seams: Seams) -> None:
    violations = [
        Violation(code="WF-S001", level="forbid", reason=reason, involves=_who(plan, seam), fix="")
        for seam, reason in unavailable.items()
        if seams.claimed(seam)
    ]
    refuse(plan, violations)


def refuse_unattached(plan: Plan, techniques: Mapping[str, Technique], seams: Seams) -> None:
    """A technique whose handlers found no site could only be silent: refuse it."""
    violations = [
        Violation(
            code="WF-S002",
            level="forbid",
            reason=f"{name} found nothing to attach to on this model, so it could have no effect.",
            involves=(name,),
            fix="",
        )
        for name, technique in techniques.items()
        if technique.handlers() and not seams.attached(name)
    ]
    refuse(plan, violations)


def close_all(techniques: Mapping[str, Technique]) -> list[tuple[str, Exception]]:
    """Close every technique, the last first; returns what failed. Its variants are given back in any case."""
    try:
        return each(techniques, lambda technique: technique.close())
    finally:
        for technique in techniques.values():
            if (held := getattr(technique, "variants", None)) is not None:
                held.close()


def _who(plan: Plan, seam: str) -> tuple[str, ...]:
    features: Sequence[PlannedFeature] = plan.features
    return tuple(feature.switch or feature.name for feature in features if seam in feature.seams)
