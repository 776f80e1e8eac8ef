"""Plans from JSON, and whether a plan still says what the installed plugins say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wf_core.errors import BadInput
from wf_core.manifests.conditions import Condition, Tables
from wf_core.manifests.declarations import EvidenceDecl, FeatureDecl
from wf_core.names import repeated
from wf_core.plugins.catalog import Catalog
from wf_core.resolving.plan import SCHEMA, Chain, NotChosen, Plan, PlannedFeature, Violation
from wf_core.values import FrozenMap, freeze, misfit

OTHER_PLUGINS = "WF-F004"
DEEPEST = 64
_SAME = ("kind", "tier", "tolerance", "experimental", "seams", "stage", "before", "after", "slot", "evidence")


def plan_from_json(data: Any) -> Plan:
    """The plan that `Plan.to_json` wrote. Raises `BadInput` for anything else."""
    if isinstance(data, Mapping) and data.get("legal") is True and isinstance(data.get("plan"), Mapping):
        data = data["plan"]  # the whole answer of `wf resolve --json`
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA or "features" not in data:
        raise BadInput(f"not a plan of schema {SCHEMA}, as `wf resolve --json` prints it")
    problem = misfit(data, DEEPEST, 4096)
    if problem:
        raise BadInput(f"not a plan: {problem}")
    try:
        plan = _plan(data)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"not a complete plan: {type(error).__name__}: {error}") from None
    if plan.hash != data.get("hash"):
        raise BadInput(
            f"the plan says the hash {data.get('hash')}, its contents have {plan.hash}: it was changed"
        )
    return plan


def _plan(data: Mapping[str, Any]) -> Plan:
    conditions, pending = _conditions(data)
    return Plan(
        request=tuple((str(key), freeze(value)) for key, value in sorted(data["request"].items())),
        family=_text(data, "family"),
        features=tuple(_feature(item) for item in data["features"]),
        host_keys=FrozenMap(data["host_keys"]),
        warnings=tuple(_violation(item) for item in data["warnings"]),
        facts_used=tuple(
            (str(name), freeze(fact["value"]), _text(fact, "source"))
            for name, fact in sorted(data["facts"].items())
        ),
        conditions=conditions,
        pending=pending,
        versions=tuple(sorted((str(name), str(version)) for name, version in data["versions"].items())),
        not_activatable=_texts(data, "not_activatable"),
        chosen=_texts(data, "chosen"),
        not_chosen=tuple(_not_chosen(item) for item in data["not_chosen"]),
    )


def _text(data: Mapping[str, Any], key: str) -> str:
    if not isinstance(data[key], str):
        raise TypeError(f"{key} is a text")
    return str(data[key])


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    if not isinstance(data[key], list | tuple) or not all(isinstance(item, str) for item in data[key]):
        raise TypeError(f"{key} is a list of texts")
    return tuple(data[key])


def _not_chosen(data: Mapping[str, Any]) -> NotChosen:
    request = sorted(data["request"].items())
    return NotChosen(_text(data, "plugin"), _text(data, "feature"), request, _texts(data, "reasons"))


def _feature(data: Mapping[str, Any]) -> PlannedFeature:
    conditions, pending = _conditions(data)
    texts: dict[str, Any] = {name: _texts(data, name) for name in ("seams", "before", "after", "effects")}
    plain: dict[str, Any] = {
        name: _text(data, name)
        for name in ("plugin", "name", "kind", "tier", "tolerance", "stage", "slot", "switch")
    }
    return PlannedFeature(
        **plain,
        **texts,
        experimental=data["experimental"] is True,
        options=tuple((str(key), freeze(value)) for key, value in sorted(data["options"].items())),
        evidence=tuple(_evidence(text) for text in data["evidence"]),
        conditions=conditions,
        pending=pending,
        not_activatable=_text(data, "not_activatable"),
    )


def _conditions(data: Mapping[str, Any]) -> tuple[tuple[Condition, ...], tuple[Condition, ...]]:
    conditions = tuple(Condition.from_json(item) for item in data["conditions"])
    return conditions, tuple(conditions[int(index)] for index in data["pending_at"])


def _violation(data: Mapping[str, Any]) -> Violation:
    chains = tuple(_chain(text) for text in data["chains"])
    code, level, reason, fix = (_text(data, key) for key in ("code", "level", "reason", "fix"))
    return Violation(code, level, reason, _texts(data, "involves"), fix, chains)


def _chain(text: str) -> Chain:
    """The chain that reads so; which of its keys is which is not needed any more."""
    keys, feature, effect = text.rsplit(" -> ", 2) if text.count(" -> ") > 1 else ("", text, "")
    return Chain((keys,) if keys else (), feature, effect)


def _evidence(text: str) -> EvidenceDecl:
    counter, operator, value = text.split()
    if operator == ">=":
        return EvidenceDecl(counter, at_least=int(value))
    return (
        EvidenceDecl(counter, equals=int(value))
        if value.isdigit()
        else EvidenceDecl(counter, equals_counter=value)
    )


def changed_since(plan: Plan, catalog: Catalog) -> tuple[Violation, ...]:
    """What the installed plugins say otherwise than the plan."""
    return tuple(
        Violation(OTHER_PLUGINS, "forbid", f"{reason}; resolve the request again.", (plugin,))
        for plugin, reason in _changes(plan, catalog)
    )


def _changes(plan: Plan, catalog: Catalog) -> Iterable[tuple[str, str]]:
    installed = {record.name: record for record in catalog.records if record.state == "available"}
    for name, version in plan.versions:
        record = installed.get(name)
        if record is None:
            yield (
                name,
                f"the plan needs the plugin {name} {version}, which is not installed or cannot be used",
            )
        elif record.version != version:
            yield name, f"the plan was made with {name} {version}, installed is {record.version}"
    named = {name for name, _ in plan.versions}
    yield from _changes_of_the_host(plan, catalog)
    yield from _changes_of_the_family(plan, catalog, named)
    for feature in plan.features:
        record = installed.get(feature.plugin)
        manifest = record.manifest if record is not None else None
        if feature.plugin not in named:
            yield feature.plugin, f"the plan does not say which version of {feature.plugin} it was made with"
        elif manifest is not None:
            declared = manifest.feature(feature.name)
            yield from (
                (feature.plugin, reason) for reason in _differences(feature, declared, manifest.tables)
            )


def _changes_of_the_host(plan: Plan, catalog: Catalog) -> Iterable[tuple[str, str]]:
    for name in repeated(feature.name for feature in plan.features):
        yield "wf-core", f"the plan has {name} more than once"
    if set(plan.host_keys) != set(catalog.host_keys):
        yield "wf-core", "the plan's keys of the host are not those of this host"
        return
    for name, key in catalog.host_keys.items():
        value = plan.host_keys[name]
        if value is not None and key.option.convert(value, name) != value:
            yield "wf-core", f"the plan's {name} is no value of that key"


def _changes_of_the_family(plan: Plan, catalog: Catalog, named: set[str]) -> Iterable[tuple[str, str]]:
    record, declared = catalog.family_plugin(plan.family), catalog.family(plan.family)
    if record is None or record.manifest is None or declared is None:
        return  # nothing can be opened without it, which opening says
    if record.name not in named:
        yield record.name, f"the plan does not say which version of {record.name} it was made with"
    kept = {*plan.conditions}
    lacking = [c for c in declared.conditions if c.bind(record.manifest.tables) not in kept]
    if lacking:
        yield record.name, f"the plan does not check a condition of {plan.family}: {lacking[0].reason}"
    if bool(declared.state) != (plan.family in plan.not_activatable):
        yield record.name, f"the plan says otherwise whether models of {plan.family} can be opened"


def _effects_fit(feature: PlannedFeature, declared: FeatureDecl) -> bool:
    """Whether the plan's effects are declared ones, and all are there that do not depend on anything."""
    options = feature.options_dict()
    always = {str(rule.effect.bind(options)) for rule in declared.effects if rule.when is None}
    return always <= {*feature.effects} <= {str(rule.effect.bind(options)) for rule in declared.effects}


def _differences(feature: PlannedFeature, declared: FeatureDecl | None, tables: Tables) -> Iterable[str]:
    if declared is None:
        yield f"{feature.plugin} has no feature {feature.name} any more"
        return
    for name in _SAME:
        if getattr(feature, name) != getattr(declared, name):
            yield f"the plan's {name} of {feature.name} is not what {feature.plugin} declares"
    if feature.not_activatable != declared.declared_only:
        yield f"the plan says otherwise whether {feature.name} can be activated"
    if not _effects_fit(feature, declared):
        yield f"the plan's effects of {feature.name} are not those that {feature.plugin} declares"
    kept = {*feature.conditions}
    lacking = [c for c in declared.conditions if c.bind(tables) not in kept]
    if lacking:
        yield f"the plan does not check a condition of {feature.name}: {lacking[0].reason}"
    if {option.name for option in declared.options} != {name for name, _ in feature.options}:
        yield f"the plan's options of {feature.name} are not those that {feature.plugin} declares"
        return
    for option in declared.options:
        value = dict(feature.options)[option.name]
        if value is not None and option.convert(value, option.name) != value:
            yield f"the plan's {option.name} of {feature.name} is no value of that option"
