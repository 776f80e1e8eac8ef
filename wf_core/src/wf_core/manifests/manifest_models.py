"""Reading ``[family]``, ``[[model]]`` and ``[table.NAME]`` of a manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wf_core.files import JSON_BYTES, read_text
from wf_core.manifests.declarations import FactSource, FamilyDecl, ModelDecl, ProfileDecl
from wf_core.manifests.manifest_features import TableKeys, read_conditions, read_state
from wf_core.manifests.toml_reader import Table
from wf_core.manifests.vocabulary import SEAMS
from wf_core.names import did_you_mean, switch_key
from wf_core.values import FrozenMap, freeze, show

OFFICIAL = ("num_inference_steps", "guidance_scale", "num_frames")
"""Numbers of a call that a publisher states, beside the sizes."""


def read_family(root: Table, tables: TableKeys) -> FamilyDecl | None:
    """The ``[family]`` table, or None where there is none."""
    data = root.mapping("family")
    if not data:
        return None
    row = Table(data, root.path, "family")
    facts = Table(row.mapping("facts"), root.path, "family.facts")
    family = FamilyDecl(
        name=row.text("name"),
        transformer_classes=_names(row, "transformer_classes"),
        seams=row.texts("seams"),
        facts=FrozenMap({name: _source(facts, name, value) for name, value in row.mapping("facts").items()}),
        conditions=read_conditions(row, (), tables),
        instead=FrozenMap({switch_key(k): switch_key(own) for k, own in _names(row, "instead").items()}),
        state=read_state(row),
        trial=row.text("trial", ""),
    )
    if not family.transformer_classes:
        row.fail("transformer_classes must name at least one class")
    variants = set(family.transformer_classes.values())
    for name, source in family.facts.items():
        for variant in sorted(set(source.by_variant) - variants):
            facts.fail(f"{name} names an unknown variant {variant!r}{did_you_mean(variant, variants)}")
    for seam in family.seams:
        if seam not in SEAMS:
            row.fail(f"unknown seam {seam!r}{did_you_mean(seam, SEAMS)}")
    row.done()
    return family


def read_model(row: Table) -> ModelDecl:
    """One ``[[model]]``. A model with neither a path nor a profile is found by the plugin's own hook."""
    profile = row.mapping("profile")
    model = ModelDecl(
        name=row.text("name"),
        family=row.text("family"),
        path=row.text("path", ""),
        summary=row.text("summary", ""),
        aliases=row.texts("aliases"),
        defaults=FrozenMap(row.mapping("defaults")),
        profile=_profile(Table(profile, row.path, f"{row.where}, profile")) if profile else None,
        remote=row.flag("remote", False),
    )
    if sum(map(bool, (model.path, model.profile, model.remote))) > 1:
        row.fail("a model has one of path, profile and remote")
    row.done()
    return model


def _profile(row: Table) -> ProfileDecl:
    configs = row.mapping("config")
    for name, config in configs.items():
        if not isinstance(config, Mapping) or (
            name != "pipeline" and not isinstance(config.get("class"), str)
        ):
            row.fail(f"config.{name} must be a table with the component's class")
    official = Table(row.mapping("official"), row.path, f"{row.where}, official")
    sizes = official.items("sizes")
    if not all(isinstance(size, tuple) and [type(n) for n in size] == [int, int] for size in sizes):
        official.fail(f"sizes is a list of [height, width], got {show(sizes)}")
    numbers = {key: official.number_or_none(key) for key in OFFICIAL}
    official.done()
    known = {key: number for key, number in numbers.items() if number is not None}
    profile = ProfileDecl(
        pipeline=row.text("pipeline"),
        configs=FrozenMap(configs),
        dtype=row.text("dtype", ""),
        parameters=row.whole_or_none("parameters", 1) or 0,
        modules=row.texts("modules"),
        official=FrozenMap({**known, **({"sizes": sizes} if sizes else {})}),
    )
    row.done()
    return profile


def read_tables(root: Table) -> dict[str, frozenset[Any]]:
    """Every ``[table.NAME]`` as its set of keys, texts in lower case."""
    found = {}
    for name, data in root.mapping("table").items():
        where = f"table {name!r}"
        if not isinstance(data, Mapping):
            root.fail(f"{where} must be a table with keys, or with file and keys_at")
        row = Table(data, root.path, where)
        keys = row.items("keys")
        file, keys_at = row.text("file", ""), row.text("keys_at", "")
        row.done()
        if bool(keys) == bool(file):
            row.fail("needs either a list of keys, or a file")
        listed = keys if keys else _keys_in_file(row, file, keys_at)
        found[name] = frozenset(key.lower() if isinstance(key, str) else freeze(key) for key in listed)
    return found


def _keys_in_file(row: Table, file: str, keys_at: str) -> tuple[Any, ...]:
    if os.path.isabs(file) or ".." in Path(file).parts:
        row.fail(f"{file} does not lie beside the manifest")
    try:
        value = json.loads(read_text(row.path.parent / file, JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        row.fail(f"{file} cannot be read: {error}")
    for part in filter(None, keys_at.split(".")):
        if not isinstance(value, dict) or part not in value:
            row.fail(f"{file} has nothing at {keys_at!r}")
        value = value[part]
    if not isinstance(value, dict | list):
        row.fail(f"{file} holds no object or list at {keys_at!r}")
    return tuple(value)


def _names(row: Table, key: str) -> FrozenMap:
    value = row.raw(key, {})
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
        row.fail(f'{key} must be a table of name = "text"')
    return FrozenMap(value)


def _source(facts: Table, name: str, value: Any) -> FactSource:
    if isinstance(value, str):
        return _from(facts, name, value, None)
    if isinstance(value, Mapping) and set(value) == {"value"}:
        return FactSource(default=freeze(value["value"]), constant=True)
    if (
        isinstance(value, Mapping)
        and set(value) == {"by_variant"}
        and isinstance(value["by_variant"], Mapping)
    ):
        return FactSource(by_variant=FrozenMap(value["by_variant"]))
    if isinstance(value, Mapping) and "from" in value and not set(value) - {"from", "default"}:
        return _from(facts, name, value["from"], freeze(value.get("default")))
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return FactSource(parts=tuple(_from(facts, name, part, None) for part in value))
    facts.fail(
        f'{name} must be "component.config_key", a list of these, {{from, default}}, {{value}} or {{by_variant}}'
    )


def _from(facts: Table, name: str, path: Any, default: Any) -> FactSource:
    component, dot, key = str(path).partition(".")
    if not (component and dot and key):
        facts.fail(f"{name} must name a component and a key of its config, got {path!r}")
    return FactSource(component, key, default)
