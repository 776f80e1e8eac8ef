"""Manifests: what a right one becomes, and one clear line for each way to be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core import data
from wf_core.manifests.declarations import EvidenceDecl, FactSource
from wf_core.manifests.effects import BadEffect, Effect, vocabulary
from wf_core.manifests.manifest import Manifest, ManifestError, NewerManifest
from wf_core.manifests.stages import STAGES

from .conftest import CACHE_MANIFEST, FAMILY_MANIFEST

HEAD = 'schema = 1\nname = "p"\napi = 1\nkind = "fusion"\n'
EVIDENCE = 'evidence = [{ counter = "calls", at_least = 1 }]\n'
OPTION = '[[feature.option]]\nname = "o"\ntype = "int"\n'
CONDITION = '[[feature.condition]]\nfact = "a"\nreason = "r"\n'
RULE = '[[effect]]\nname = "melts"\ndoc = "d"\n[[rule]]\ncode = "A"\nlevel = "forbid"\nreason = "r"\n'
PAIR = 'pair = ["melts", "captures-graph"]\n'
FEATURE = f'[[feature]]\nname = "f"\ntier = "exact"\n{EVIDENCE}'


def load(tmp_path: Path, text: str) -> Manifest:
    path = tmp_path / "wf-plugin.toml"
    path.write_text(text)
    return Manifest.load(path)


def test_a_cache_manifest(tmp_path: Path) -> None:
    more = (
        '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "this is {value}"\ncode = "X-1"\n'
    )
    text = CACHE_MANIFEST.format(name="Cache_Toy", api=1, feature="toycache", switch="toy-cache", more=more)
    manifest = load(tmp_path, text)
    feature = manifest.feature("toycache")
    assert feature is not None
    assert manifest.name == "cache-toy"
    assert (feature.kind, feature.stage, feature.slot) == ("feature-cache", "cache", "feature-cache")
    assert [str(rule.effect) for rule in feature.effects] == ["skips-blocks@stack", "host-state@stack"]
    assert feature.evidence == (EvidenceDecl("skipped", at_least=1),)
    assert feature.selects[0].values == ("toycache",)
    assert [option.name for option in feature.options] == ["threshold", "coefficients"]
    assert feature.conditions[0].code == "X-1"
    assert (manifest.switches[0].name, manifest.switches[0].shorthand) == ("toy_cache", "threshold")
    assert feature.supports("toy")
    assert not feature.supports("other")


def test_a_family_manifest(tmp_path: Path) -> None:
    family = load(tmp_path, FAMILY_MANIFEST).family
    assert family is not None
    assert family.transformer_classes["ToyVaceTransformer"] == "toy-vace"
    assert family.facts["model.heads"] == FactSource("transformer", "num_attention_heads")
    assert family.facts["vae.spatial_factor"] == FactSource("vae", "scale_factor_spatial", 8)
    assert family.facts["model.lossy_attention"] == FactSource(default=True, constant=True)
    assert dict(family.instead) == {"vae_tiles": "toy_tiles"}


def test_a_model_manifest_and_its_tables(tmp_path: Path) -> None:
    (tmp_path / "presets.json").write_text('{"teacache": {"Wan-A": 1, "wan-b": 2}}')
    text = (
        'schema = 1\nname = "m"\napi = 1\nkind = "model-source"\n'
        '[[model]]\nname = "tiny"\nfamily = "toy"\npath = "checkpoint"\naliases = ["t"]\n'
        '[model.defaults]\nheight = 64\nprompts = ["a"]\n'
        '[table.presets]\nfile = "presets.json"\nkeys_at = "teacache"\n[table.more]\nkeys = ["X", 3]\n'
    )
    manifest = load(tmp_path, text)
    assert manifest.models[0].defaults_dict() == {"height": 64, "prompts": ["a"]}
    assert manifest.tables["presets"] == frozenset({"wan-a", "wan-b"})
    assert manifest.tables["more"] == frozenset({"x", 3})


def test_a_plugin_may_bring_effects_and_rules_of_its_own(tmp_path: Path) -> None:
    text = (
        HEAD + '[[effect]]\nname = "melts"\ndoc = "It melts."\n'
        '[[rule]]\ncode = "MY-1"\nlevel = "forbid"\npair = ["melts", "captures-graph"]\nreason = "It would drip."\n'
        + FEATURE + 'effects = ["melts@stack", { effect = "compiles", when = { option = "x", eq = 1 } }]\n'
        '[[feature.option]]\nname = "x"\ntype = "int"\n'
    )  # fmt: skip
    manifest = load(tmp_path, text)
    assert manifest.rules[0].pair == ("melts", "captures-graph")
    assert manifest.features[0].effects[0].effect == Effect("melts", "stack")
    assert manifest.features[0].effects[1].when is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema = ", "not valid TOML"),
        ('name = "p"\n', "schema is missing"),
        ("schema = 1\n", "api is missing"),
        ("schema = 1\napi = true\n", "api must be a whole number"),
        ("schema = 0\napi = 1\n", "start at 1"),
        ("schema = 1\napi = 1\n", "name is missing"),
        ('schema = 1\napi = 1\nname = "p"\n', "kind is missing"),
        ('schema = 1\napi = 1\nname = "p"\nkind = "fusio"\n', "did you mean fusion"),
        (HEAD, "at least one"),
        (HEAD + "tiers = 1\n" + FEATURE, "unknown key 'tiers'"),
        (HEAD + '[[feature]]\nname = "f"\n', "feature 'f': tier is missing"),
        (HEAD + '[[feature]]\ntier = "exact"\n', "feature number 1: name is missing"),
        (HEAD + FEATURE + FEATURE, "declared twice"),
        (HEAD + FEATURE.replace("exact", "equivalent"), "needs a tolerance"),
        (HEAD + FEATURE.replace(EVIDENCE, ""), "feature 'f': needs evidence"),
        (HEAD + FEATURE.replace("at_least = 1", "at_least = 0"), "needs evidence"),
        (HEAD + FEATURE.replace("at_least = 1", "equals = 0"), "needs evidence"),
        (HEAD + FEATURE.replace("at_least = 1", 'equals_counter = "tries"'), "needs evidence"),
        (HEAD + FEATURE.replace("at_least = 1", 'at_least = "one"'), "at_least must be a whole number"),
        (HEAD + FEATURE.replace("at_least = 1", "at_least = -1"), "at_least must be 0 or more"),
        (HEAD + FEATURE.replace("at_least = 1", "equals = 1.5"), "equals must be a whole number"),
        (HEAD + FEATURE + "effects = 5\n", "effects must be a list"),
        (HEAD + FEATURE + 'effects = ["occupies-ranks(\u00b2)"]\n', "not declared"),
        (HEAD + FEATURE + 'state = "maybe: x"\n', 'must be "unavailable: REASON"'),
        (HEAD + FEATURE + 'state = "unavailable"\n', 'must be "unavailable: REASON"'),
        (HEAD + FEATURE + OPTION + "choices = 5\n", "choices must be a list"),
        (HEAD + FEATURE + OPTION.replace("int", "choice") + "choices = [[1]]\n", "choices are texts"),
        (HEAD + FEATURE + OPTION + "length = 2\n", "length is for lists"),
        (HEAD + FEATURE + OPTION.replace("int", "ints") + "length = 0\n", "length must be 1 or more"),
        (HEAD + FEATURE + OPTION + "min = nan\n", "min must be a finite number"),
        (HEAD + FEATURE + OPTION + 'max = "9"\n', "max must be a finite number"),
        (HEAD + FEATURE + OPTION + OPTION, "option 'o' is declared twice"),
        (HEAD + FEATURE + CONDITION + "in_table = { fact = 'b' }\n", "in_table takes the name"),
        (HEAD + FEATURE + CONDITION + "eq = { fact = 'b', x = 1 }\n", "compares with one fact"),
        (HEAD + FEATURE + CONDITION + "eq = 1\ncode = 5\n", "reason and code are texts"),
        (HEAD + FEATURE + "[packages]\n'../x' = '*'\n", "is no name of a package"),
        (HEAD + FEATURE + '[[effect]]\nname = "compiles"\ndoc = "d"\n', "a word of the host"),
        (HEAD + FEATURE + '[[effect]]\nname = "It melts"\ndoc = "d"\n', "written in small letters"),
        (HEAD + FEATURE + RULE + 'effect = "melts"\n', "needs = { fact"),
        (
            HEAD + FEATURE + RULE + 'effect = "melts"\nslot = "s"\nneeds = { fact = "a", eq = 1 }\n',
            "a slot, one effect, or when over facts",
        ),
        (HEAD + FEATURE + RULE + 'effect = "compiles"\nneeds = { fact = "a", eq = 1 }\n', "introduces"),
        (HEAD + FEATURE + RULE + 'pair = ["melts", "captures-grap"]\n', "did you mean captures-graph"),
        (HEAD + FEATURE + RULE + 'pair = ["melts", "drips"]\n', "unknown effect 'drips'; introduce it in"),
        (
            HEAD + FEATURE + RULE + 'effect = "drips"\nneeds = { fact = "a", eq = 1 }\n',
            "unknown effect 'drips'",
        ),
        (HEAD + FEATURE + RULE.replace('reason = "r"\n', "") + PAIR, "rule number 1: reason is missing"),
        (HEAD + FEATURE + RULE.replace('"r"', '" "') + PAIR, "reason must not be empty"),
        (HEAD + FEATURE + RULE.replace("forbid", "warn") + PAIR, "unknown level 'warn'"),
        (HEAD + FEATURE + RULE.replace('code = "A"\n', "") + PAIR, "code is missing"),
        (
            HEAD + FEATURE + RULE + PAIR + RULE.partition("[[rule]]")[2].join(("[[rule]]", PAIR)),
            "'A' is declared twice",
        ),
        (
            HEAD + FEATURE + OPTION + 'default_with = [{ effect = "drips", value = 1 }]\n',
            "unknown effect 'drips'",
        ),
        (HEAD + FEATURE + 'effects = ["lossy"]\n', "'lossy' is given by the host"),
        (HEAD + FEATURE + 'effects = ["not-for-training"]\n', "is given by the host"),
        (HEAD + FEATURE + '[[effect]]\nname = "lossy"\ndoc = "d"\n', "a word of the host"),
        ("x = " + "9" * 5000 + "\n", "not valid TOML"),
        ("x = " + "[" * 5000 + "\n", "not valid TOML"),
        (HEAD + FEATURE + 'stagee = "cache"\n', "did you mean stage"),
        (HEAD + FEATURE + 'stage = "cach"\n', "did you mean cache"),
        (HEAD + FEATURE + 'seams = ["atention"]\n', "did you mean attention"),
        (HEAD + FEATURE + 'seams = ["rope"]\noptional_seams = ["stack"]\n', "not among its seams"),
        (HEAD + FEATURE + 'seams = ["rope"]\noptional_seams = ["rope"]\n', "names all of its seams"),
        (
            HEAD + FEATURE + 'seams = ["rope", "stack"]\noptional_seams = ["rope", "rope"]\n',
            "names a seam twice",
        ),
        (HEAD + FEATURE + 'effects = ["host-stat"]\n', "did you mean host-state"),
        (HEAD + FEATURE + 'effects = ["melts"]\n', "introduce it in"),
        (HEAD + FEATURE + 'effects = ["occupies-ranks"]\n', "carries 1 numbers"),
        (HEAD + FEATURE + 'effects = ["occupies-ranks(degree)"]\n', "not declared"),
        (HEAD + FEATURE + 'effects = ["host-state@nowhere"]\n', "unknown seam"),
        (HEAD + FEATURE + "families = []\n", "at least one family"),
        (HEAD + FEATURE + '[[feature.option]]\nname = "o"\ntype = "integer"\n', "unknown type 'integer'"),
        (
            HEAD + FEATURE + '[[feature.option]]\nname = "o"\ntype = "int"\ndefault = "a"\n',
            "default does not fit",
        ),
        (HEAD + FEATURE + '[[feature.option]]\nname = "o"\ntype = "choice"\n', "go together"),
        (HEAD + FEATURE + '[[feature.condition]]\nfact = "a"\neq = 1\n', "needs a reason"),
        (HEAD + FEATURE + '[[feature.condition]]\noption = "a"\neq = 1\nreason = "r"\n', "not declared"),
        (HEAD + FEATURE + '[[feature.condition]]\nfact = "a"\nin_table = "t"\nreason = "r"\n', "table 't'"),
        (
            HEAD + FEATURE.replace("at_least = 1", "at_least = 1, equals = 1"),
            "one of at_least",
        ),
        (HEAD + FEATURE + '[[switch]]\nname = "s"\nfeature = "g"\nform = "flag"\n', "no feature 'g'"),
        (HEAD + FEATURE + '[[switch]]\nname = "s"\nfeature = "f"\nform = "value"\n', "needs the option"),
        (
            HEAD + FEATURE + '[[switch]]\nname = "s"\nfeature = "f"\nform = "value"\noption = "o"\n',
            "no option 'o'",
        ),
        (HEAD + FEATURE + '[[switch]]\nname = "s"\nfeature = "f"\nform = "on"\n', "unknown form"),
        (HEAD + FEATURE + '[table.t]\nfile = "none.json"\n', "none.json cannot be read"),
        (HEAD + FEATURE + "[table.t]\n", "either a list of keys, or a file"),
        (HEAD + FEATURE + '[[rule]]\ncode = "A"\nlevel = "forbid"\nslot = "s"\n', "reason is missing"),
        (
            HEAD
            + FEATURE
            + '[[rule]]\ncode = "A"\nlevel = "forbid"\npair = ["compiles", "host-sync"]\nreason = "r"\n',
            "introduces",
        ),
        (HEAD + FEATURE + '[family]\nname = "x"\ntransformer_classes = { A = "a" }\n', "go together"),
        (
            FAMILY_MANIFEST.replace('"model.layers" = "transformer.num_layers"', '"a" = "transformer"'),
            "name a component",
        ),
    ],
)
def test_a_wrong_manifest_is_one_line_that_names_the_file_and_the_place(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert words in message
    assert "wf-plugin.toml" in message
    assert "\n" not in message


def test_a_newer_api_is_told_apart_before_anything_else_is_read(tmp_path: Path) -> None:
    with pytest.raises(NewerManifest, match="API 2, this host offers 1"):
        load(tmp_path, "schema = 1\napi = 2\nsomething = 'new'\n")
    with pytest.raises(NewerManifest, match="schema 9, this host reads 1"):
        load(tmp_path, "schema = 9\napi = 1\n")


def test_effects_parse_and_print_the_same() -> None:
    for text in ("host-sync", "skips-blocks@stack", "occupies-ranks(2)", "occupies-ranks(degree)@vae.decode"):
        assert str(Effect.parse(text)) == text
    assert Effect.parse("occupies-ranks(degree)").bind({"degree": 4}).numbers == (4,)
    with pytest.raises(BadEffect, match="not written as"):
        Effect.parse("Host State")


def test_vocabularies_have_no_doubles_and_say_what_they_mean() -> None:
    assert len(STAGES) == len(set(STAGES))
    assert all(word.doc.endswith(".") for word in vocabulary().values())
    assert len(vocabulary()) == len(data.table("effects")["effect"])
