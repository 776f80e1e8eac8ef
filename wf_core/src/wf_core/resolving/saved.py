"""Plans from JSON, and whether a plan still says what the installed plugins say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wf_core.errors import BadInput
from wf_core.manifests.conditions import Condition, Tables
from wf_core.manifests.declarations import EvidenceDecl, FeatureDecl
from wf_core.plugins.catalog import Catalog
from wf_core.resolving.plan import SCHEMA, Chain, Plan, PlannedFeature, Violation
from wf_core.values import FrozenMap, freeze

OTHER_PLUGINS = "WF-F004"
_SAME = ("kind", "tier", "tolerance", "experimental", "seams", "stage", "before", "after", "slot", "evidence")


def plan_from_json(data: Any) -> Plan:
    """The plan that `Plan.to_json` wrote. Raises `BadInput` for anything else."""
    if isinstance(data, Mapping) and data.get("legal") is True and isinstance(data.get("plan"), Mapping):
        data = data["plan"]  # the whole answer of `wf resolve --json`
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA or "features" not in data:
        raise BadInput(f"not a plan of schema {SCHEMA}, as `wf resolve --json` prints it")
    try:
        plan = _plan(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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
        family=data["family"],
        features=tuple(_feature(item) for item in data["features"]),
        host_keys=FrozenMap(data["host_keys"]),
        warnings=tuple(_violation(item) for item in data["warnings"]),
        facts_used=tuple(
            (name, freeze(fact["value"]), fact["source"]) for name, fact in sorted(data["facts"].items())
        ),
        conditions=conditions,
        pending=pending,
        versions=tuple(sorted((str(name), str(version)) for name, version in data["versions"].items())),
        not_activatable=tuple(data["not_activatable"]),
        chosen=tuple(data["chosen"]),
    )


def _feature(data: Mapping[str, Any]) -> PlannedFeature:
    conditions, pending = _conditions(data)
    texts: dict[str, Any] = {name: tuple(data[name]) for name in ("seams", "before", "after", "effects")}
    plain: dict[str, Any] = {
        name: data[name]
        for name in ("plugin", "name", "kind", "tier", "tolerance", "experimental", "stage", "slot", "switch")
    }
    return PlannedFeature(
        **plain,
        **texts,
        options=tuple((str(key), freeze(value)) for key, value in sorted(data["options"].items())),
        evidence=tuple(_evidence(text) for text in data["evidence"]),
        conditions=conditions,
        pending=pending,
        not_activatable=data["not_activatable"],
    )


def _conditions(data: Mapping[str, Any]) -> tuple[tuple[Condition, ...], tuple[Condition, ...]]:
    conditions = tuple(Condition.from_json(item) for item in data["conditions"])
    waiting = [str(reason) for reason in data["pending"]]
    return conditions, tuple(condition for condition in conditions if condition.reason in waiting)


def _violation(data: Mapping[str, Any]) -> Violation:
    chains = tuple(_chain(text) for text in data["chains"])
    return Violation(
        data["code"], data["level"], data["reason"], tuple(data["involves"]), data["fix"], chains
    )


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


def _differences(feature: PlannedFeature, declared: FeatureDecl | None, tables: Tables) -> Iterable[str]:
    if declared is None:
        yield f"{feature.plugin} has no feature {feature.name} any more"
        return
    for name in _SAME:
        if getattr(feature, name) != getattr(declared, name):
            yield f"the plan's {name} of {feature.name} is not what {feature.plugin} declares"
    lacking = [c for c in declared.conditions if c.bind(tables) not in feature.conditions]
    if lacking:
        yield f"the plan does not check a condition of {feature.name}: {lacking[0].reason}"
    if {option.name for option in declared.options} != {name for name, _ in feature.options}:
        yield f"the plan's options of {feature.name} are not those that {feature.plugin} declares"
        return
    for option in declared.options:
        value = dict(feature.options)[option.name]
        if value is not None and option.convert(value, option.name) != value:
            yield f"the plan's {option.name} of {feature.name} is no value of that option"
