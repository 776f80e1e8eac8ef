"""The manifest: ``wf-plugin.toml`` beside the plugin's top-level ``__init__.py``. All declarations, no code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from wf_core.files import MANIFEST_BYTES, read_text
from wf_core.manifests.conditions import BadCondition, check_placeholders
from wf_core.manifests.declarations import (
    EvidenceDecl,
    FamilyDecl,
    FeatureDecl,
    ModelDecl,
    Rule,
    SwitchDecl,
)
from wf_core.manifests.effects import EffectWord, is_word, vocabulary
from wf_core.manifests.manifest_features import read_condition, read_feature, read_switch
from wf_core.manifests.manifest_models import read_family, read_model, read_tables
from wf_core.manifests.options import OptionDecl
from wf_core.manifests.toml_reader import ManifestError, Table
from wf_core.manifests.vocabulary import FILE_NAME, HOST_API, KINDS, MODEL_KINDS, SCHEMA
from wf_core.names import did_you_mean, normalise, repeated
from wf_core.values import EMPTY, FrozenMap, misfit

__all__ = [
    "EvidenceDecl",
    "FILE_NAME",
    "FamilyDecl",
    "FeatureDecl",
    "Manifest",
    "ManifestError",
    "ModelDecl",
    "NewerManifest",
    "Rule",
    "SwitchDecl",
    "read_rule",
]

AGGREGATES = ("product", "sum", "equal")
_DEEPEST = 64
_LONG_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % _DEEPEST  # noqa: UP031
)
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class NewerManifest(ManifestError):
    """A manifest that is written for a newer host; nothing else in it has been looked at."""


@attrs.frozen
class Manifest:
    """A checked manifest. ``tables`` maps a table's name to its keys, texts in lower case."""

    path: Path
    name: str
    api: int
    kind: str
    summary: str = ""
    features: tuple[FeatureDecl, ...] = ()
    switches: tuple[SwitchDecl, ...] = ()
    family: FamilyDecl | None = None
    models: tuple[ModelDecl, ...] = ()
    tables: FrozenMap = EMPTY
    effects: tuple[EffectWord, ...] = ()
    rules: tuple[Rule, ...] = ()
    packages: FrozenMap = EMPTY

    @classmethod
    def load(cls, path: Path | str) -> Manifest:
        """Reads and checks one file; raises `ManifestError` with one line."""
        path = Path(path)
        root = Table(_parse(path), path)
        _check_versions(root)
        manifest = _read(root, path)
        root.done()
        return manifest

    def feature(self, name: str) -> FeatureDecl | None:
        """The declaration of one of its features, or None."""
        return next((feature for feature in self.features if feature.name == name), None)

    def switches_of(self, feature: str) -> tuple[SwitchDecl, ...]:
        """The switches of one of its features."""
        return tuple(switch for switch in self.switches if switch.feature == feature)


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path, MANIFEST_BYTES)
    except (OSError, ValueError) as error:
        raise ManifestError(path, "", f"cannot be read: {error}") from None
    if _LONG_KEY.search(text):  # reading one takes the square of its length
        raise ManifestError(path, "", f"a key of more than {_DEEPEST} parts")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is no TOMLDecodeError
        raise ManifestError(path, "", f"not valid TOML: {error}") from None
    problem = misfit(data, _DEEPEST, 64)
    if problem:
        raise ManifestError(path, "", problem)
    return data


def _check_versions(root: Table) -> None:
    schema, api = root.whole("schema"), root.whole("api")
    if api > HOST_API:
        raise NewerManifest(root.path, "", f"asks for plugin API {api}, this host offers {HOST_API}")
    if schema > SCHEMA:
        raise NewerManifest(
            root.path, "", f"is written in manifest schema {schema}, this host reads {SCHEMA}"
        )
    if schema < 1 or api < 1:
        root.fail("schema and api start at 1")


def _read(root: Table, path: Path) -> Manifest:
    name, kind = normalise(root.text("name")), root.one_of("kind", KINDS)
    own = tuple(_effect_word(row) for row in root.tables("effect"))
    _unique(root, "effect", [word.name for word in own])
    words = {**vocabulary(), **{word.name: word for word in own}}
    tables = read_tables(root)
    features = tuple(read_feature(row, kind, words, tables) for row in root.tables("feature"))
    _unique(root, "feature", [feature.name for feature in features])
    switches = tuple(read_switch(row, features) for row in root.tables("switch"))
    _unique(root, "switch", [name for switch in switches for name in (switch.name, *switch.aliases)])
    family = read_family(root, tables)
    models = tuple(read_model(row) for row in root.tables("model"))
    if kind not in MODEL_KINDS and not features:
        root.fail(f"a plugin of kind {kind} declares at least one [[feature]]")
    if (family is not None) != (kind == "model-family"):
        root.fail("a [family] table and the kind model-family go together")
    rules = tuple(read_rule(row, words) for row in root.tables("rule"))
    _check_own_rules(root, rules, own)
    return Manifest(
        path=path,
        name=name,
        api=root.whole("api"),
        kind=kind,
        summary=root.text("summary", ""),
        features=features,
        switches=switches,
        family=family,
        models=models,
        tables=FrozenMap(tables),
        effects=own,
        rules=rules,
        packages=_packages(root),
    )


def _effect_word(row: Table) -> EffectWord:
    word = EffectWord(row.text("name"), row.text("doc"), row.whole_or_none("numbers", 0) or 0)
    if not is_word(word.name):
        row.fail(f"an effect's name is written in small letters, digits and hyphens, got {word.name!r}")
    if word.name in vocabulary():
        row.fail(f"{word.name!r} is a word of the host, whose meaning a plugin does not change")
    row.done()
    return word


def read_rule(row: Table, words: Mapping[str, EffectWord]) -> Rule:
    """One ``[[rule]]`` in one of its forms, with a code, a level and a reason."""
    needs, when = row.mapping("needs"), row.mapping("when")
    total = (OptionDecl("total", "int"),) if row.raw("aggregate") else ()
    rule = Rule(
        code=row.text("code"),
        level=row.one_of("level", ("forbid", "untested")),
        reason=row.text("reason"),
        pair=row.texts("pair"),
        scope=row.one_of("scope", ("any", "inside"), "any"),
        slot=row.text("slot", ""),
        effect=row.text("effect", ""),
        aggregate=row.one_of("aggregate", AGGREGATES, ""),
        when=read_condition(row, when, "when", (), {}, top=False) if when else None,
        needs=read_condition(row, needs, "needs", total, {}, top=False) if needs else None,
        involves=row.texts("involves"),
    )
    forms = (rule.pair, rule.slot, rule.effect, rule.when)
    if sum(map(bool, forms)) != 1 or len(rule.pair) not in (0, 2):
        row.fail("a rule names a pair of two effects, a slot, one effect, or when over facts")
    if bool(rule.effect or rule.when) != bool(rule.needs) or (rule.needs and rule.level != "forbid"):
        row.fail("a rule about one effect or about facts has the level forbid, and needs = { fact = ... }")
    if rule.aggregate and not (rule.effect in words and words[rule.effect].numbers == 1):
        row.fail("an aggregate is taken over an effect that carries one number")
    try:
        check_placeholders(rule.reason, ("value", "total", "slot"))
    except BadCondition as error:
        row.fail(str(error))
    unknown = [name for name in (*rule.pair, rule.effect) if name and name not in words]
    if unknown:
        row.fail(
            f"unknown effect {unknown[0]!r}{did_you_mean(unknown[0], words, '; introduce it in [[effect]]')}"
        )
    row.done()
    return rule


def _check_own_rules(root: Table, rules: tuple[Rule, ...], own: tuple[EffectWord, ...]) -> None:
    names = {word.name for word in own}
    _unique(root, "rule code", [rule.code for rule in rules])
    for rule in rules:
        if not rule.slot and not names & {*rule.pair, rule.effect}:
            root.fail(f"rule {rule.code} is about no effect that this manifest introduces")
        if rule.slot == "*":
            root.fail(f"rule {rule.code} is about every slot; name one")


def _packages(root: Table) -> FrozenMap:
    packages = root.mapping("packages")
    for name, wanted in packages.items():
        if not isinstance(wanted, str):
            root.fail(f'packages: {name} takes a version range as text, or "*"')
        if not _PACKAGE.fullmatch(name):
            root.fail(f"packages: {name!r} is no name of a package")
    return FrozenMap(packages)


def _unique(root: Table, what: str, names: list[str]) -> None:
    twice = repeated(names)
    if twice:
        root.fail(f"{what} {twice[0]!r} is declared twice")
