"""Manifests: the keys by which a feature is chosen, read from files, judged by the others and added by goals."""

from __future__ import annotations

from pathlib import Path

import pytest

from wf_core.manifests.declarations import FactSource, FileDecl, GoalDecl, Rank
from wf_core.manifests.manifest import ManifestError
from wf_core.manifests.options import DefaultWith
from wf_core.values import FrozenMap

from .conftest import FAMILY_MANIFEST
from .test_manifest import FEATURE, HEAD, OPTION, load

ORDER = 'select = [{{ switch = "attention_backend", values = ["f"], groups = ["auto"], order = {order} }}]\n'
SELECT = 'select = [{{ switch = "attention_backend", values = ["f"], {more} }}]\n'
CHOICE = '[[feature.option]]\nname = "o"\ntype = "choice"\nchoices = ["bfloat16", "float32"]\n'
FILE = '[[feature.option]]\nname = "path"\ntype = "path"\n[[feature.file]]\noption = "path"\n'
MODEL = 'schema = 1\nname = "m"\napi = 1\nkind = "model-source"\n[[model]]\nname = "tiny"\nfamily = "toy"\n'
PROFILE = MODEL + '[model.profile]\npipeline = "P"\n'
WORD = '[[effect]]\nname = "takes"\ndoc = "d"\nnumbers = 1\n[[effect]]\nname = "melts"\ndoc = "d"\n'
RULE = WORD + '[[rule]]\ncode = "A"\nlevel = "forbid"\nreason = "r"\n'
NEEDS = 'needs = { fact = "a", eq = 1 }\n'
TOTAL = 'needs = { fact = "a", eq = { option = "total" } }\n'


def test_how_a_feature_is_chosen(tmp_path: Path) -> None:
    more = (
        '[[feature.select]]\nswitch = "attention-backend"\nvalues = ["f"]\ngroups = ["auto", "quick"]\n'
        'order = [{ order = 10, when = { option = "bits", eq = 4 } }, { order = 50 }]\n'
        '[[feature.select]]\nswitch = "quantization"\nvalues = ["g"]\nsuffix = ".PAK"\nsuffix_option = "path"\n'
        '[[feature.option]]\nname = "path"\ntype = "path"\n[[feature.option]]\nname = "bits"\ntype = "int"\n'
    )
    one, two = load(tmp_path, HEAD + FEATURE + more).features[0].selects
    assert (one.switch, one.groups) == ("attention_backend", ("auto", "quick"))
    assert [rank.order for rank in one.ranks] == [10, 50]
    assert one.ranks[0].when is not None
    assert one.ranks[1] == Rank(50)
    assert (two.suffix, two.suffix_option, two.groups, two.ranks) == (".pak", "path", (), ())


def test_what_a_feature_says_of_files_goals_and_options(tmp_path: Path) -> None:
    more = (
        'example = { "my-key" = { path = "x" } }\n'
        'goals = ["fast", { goal = "exact", order = 5, set = { other-key = 1 } }]\n'
        '[[feature.file]]\noption = "path"\nfacts = { "my.channels" = { tensor = "t", axis = -1 } }\n'
        '[[feature.option]]\nname = "path"\ntype = "path"\n'
        '[[feature.option]]\nname = "dtype"\ntype = "choice"\nchoices = ["bfloat16"]\n'
        'spellings = { bf16 = "bfloat16" }\n'
        'sets = "model.dtype"\ndefault_with = [{ effect = "compiles", value = "bf16", unless = ["path"] }]\n'
    )
    feature = load(tmp_path, HEAD + FEATURE + more).features[0]
    assert feature.example == FrozenMap({"my_key": {"path": "x"}})
    assert feature.goals == (GoalDecl("fast"), GoalDecl("exact", 5, FrozenMap({"other_key": 1})))
    assert feature.files == (FileDecl("path", (("my.channels", "t", -1),)),)
    dtype = feature.option("dtype")
    assert dtype is not None
    assert (dtype.sets, dtype.convert("bf16", "dtype")) == ("model.dtype", "bfloat16")
    assert dtype.default_with == (DefaultWith("compiles", "bf16", ("path",)),)


def test_what_is_known_of_a_family_and_of_a_model(tmp_path: Path) -> None:
    text = FAMILY_MANIFEST.replace("[family]\n", '[family]\nstate = "unavailable: later"\n')
    text = text.replace("{ value = true }", "{ by_variant = { toy = 1, toy-vace = 2 } }")
    family = load(tmp_path, text).family
    assert family is not None
    assert family.state == "unavailable: later"
    assert family.facts["model.lossy_attention"] == FactSource(
        by_variant=FrozenMap({"toy": 1, "toy-vace": 2})
    )
    listed = FAMILY_MANIFEST.replace("{ value = true }", '["transformer.a", "vae.b"]')
    family = load(tmp_path, listed).family
    assert family is not None
    assert family.facts["model.lossy_attention"].parts == (
        FactSource("transformer", "a"),
        FactSource("vae", "b"),
    )
    more = (
        'dtype = "bfloat16"\nparameters = 1_000\nmodules = ["blocks"]\n'
        '[model.profile.config.transformer]\nclass = "T"\nnum_layers = 3\n[model.profile.config.pipeline]\nx = 1\n'
        "[model.profile.official]\nnum_inference_steps = 50\nsizes = [[480, 832]]\n"
        '[[model]]\nname = "api"\nfamily = "toy"\nremote = true\n'
    )
    tiny, api = load(tmp_path, PROFILE + more).models
    assert (tiny.remote, api.remote, api.profile) == (False, True, None)
    assert tiny.profile is not None
    assert (tiny.profile.pipeline, tiny.profile.dtype, tiny.profile.parameters) == ("P", "bfloat16", 1_000)
    assert tiny.profile.configs["transformer"]["num_layers"] == 3
    assert tiny.profile.official == FrozenMap({"num_inference_steps": 50, "sizes": [[480, 832]]})


def test_a_rule_over_numbers(tmp_path: Path) -> None:
    text = HEAD + FEATURE + RULE + 'aggregate = "sum"\neffect = "takes"\ninvolves = ["places"]\n' + TOTAL
    [rule] = load(tmp_path, text).rules
    assert (rule.aggregate, rule.effect, rule.involves) == ("sum", "takes", ("places",))
    assert rule.needs is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # select
        (HEAD + FEATURE + SELECT.format(more='groups = "auto"'), "groups must be a list of texts"),
        (HEAD + FEATURE + 'select = [{ switch = "a", order = 1 }]\n', "needs at least one value"),
        (HEAD + FEATURE + SELECT.format(more="order = 1"), "no groups are named"),
        (
            HEAD + FEATURE + ORDER.format(order='"first"'),
            "order is a whole number, or a list of {order, when}",
        ),
        (HEAD + FEATURE + ORDER.format(order="true"), "order is a whole number"),
        (HEAD + FEATURE + ORDER.format(order="1.5"), "order is a whole number"),
        (HEAD + FEATURE + ORDER.format(order="[5]"), "order is a whole number"),
        (HEAD + FEATURE + ORDER.format(order="[{ order = 1, if = 2 }]"), "a list of {order, when}"),
        (
            HEAD + FEATURE + ORDER.format(order='[{ when = { fact = "a", eq = 1 } }]'),
            "a list of {order, when}",
        ),
        (HEAD + FEATURE + ORDER.format(order='[{ order = 1, when = { fact = "a" } }]'), "needs an operator"),
        (
            HEAD + FEATURE + ORDER.format(order='[{ order = 1, when = { option = "x", eq = 1 } }]'),
            "when of order looks at an option 'x' that is not declared",
        ),
        (HEAD + FEATURE + SELECT.format(more='suffix = ".x"'), "suffix and suffix_option go together"),
        (HEAD + FEATURE + SELECT.format(more='suffix_option = "x"'), "suffix and suffix_option go together"),
        (
            HEAD + FEATURE + SELECT.format(more='suffix = ".x", suffix_option = "path"'),
            "'path' is no option of the feature",
        ),
        (HEAD + FEATURE + SELECT.format(more="suffix = 5"), "suffix must be text"),
        # option
        (HEAD + FEATURE + OPTION + "sets = 5\n", "sets must be text"),
        (HEAD + FEATURE + OPTION + "default_with = 5\n", "default_with must be a list"),
        (HEAD + FEATURE + OPTION + 'default_with = ["compiles"]\n', "list of {effect, value, unless}"),
        (HEAD + FEATURE + OPTION + 'default_with = [{ effect = "compiles" }]\n', "{effect, value, unless}"),
        (
            HEAD + FEATURE + OPTION + 'default_with = [{ effect = "compiles", value = 1, if = 1 }]\n',
            "{effect, value, unless}",
        ),
        (
            HEAD + FEATURE + OPTION + 'default_with = [{ effect = "compiles", value = 1, unless = "o" }]\n',
            "{effect, value, unless}",
        ),
        (
            HEAD + FEATURE + OPTION + 'default_with = [{ effect = "compiles", value = 1, unless = ["x"] }]\n',
            "for an option 'x' that is not declared",
        ),
        (
            HEAD + FEATURE + OPTION + 'default_with = [{ effect = "compile", value = 1 }]\n',
            "unknown effect 'compile'; did you mean compiles",
        ),
        (
            HEAD + FEATURE + OPTION + 'default_with = [{ effect = "compiles", value = "a" }]\n',
            "its default does not fit: expects a whole number",
        ),
        (HEAD + FEATURE + CHOICE + 'spellings = ["bf16"]\n', "spellings must be a table"),
        (HEAD + FEATURE + CHOICE + 'spellings = { bf16 = "bfloat1" }\n', "spellings map texts to choices"),
        (HEAD + FEATURE + CHOICE + 'spellings = { Float32 = "bfloat16" }\n', "it is a choice itself"),
        (HEAD + FEATURE + OPTION + "spellings = { one = 1 }\n", "spellings map texts to choices"),
        # example, goals, files
        (HEAD + FEATURE + "example = 5\n", "example must be a table"),
        (HEAD + FEATURE + 'goals = "fast"\n', "goals must be a list"),
        (HEAD + FEATURE + 'goals = ["fast"]\n', "a goal adds the feature's example, or a set of its own"),
        (
            HEAD + FEATURE + "example = { f = 1 }\n" + 'goals = ["quick"]\n',
            "unknown goal 'quick' (exact, fast, memory)",
        ),
        (HEAD + FEATURE + 'goals = ["exakt"]\n', "did you mean exact"),
        (HEAD + FEATURE + "goals = [5]\n", "goals is a list of names, or of {goal, order, set}"),
        (HEAD + FEATURE + "goals = [{ order = 5 }]\n", "goals is a list of names, or of {goal, order, set}"),
        (HEAD + FEATURE + 'goals = [{ goal = "fast", if = 5 }]\n', "goals is a list of names"),
        (HEAD + FEATURE + 'goals = [{ goal = ["fast"] }]\n', "unknown goal"),
        (HEAD + FEATURE + 'goals = [{ goal = "fast", order = "a" }]\n', "order is a whole number"),
        (HEAD + FEATURE + 'goals = [{ goal = "fast", set = "a" }]\n', "its set a table"),
        (HEAD + FEATURE + "[[feature.file]]\n", "option is missing"),
        (HEAD + FEATURE + '[[feature.file]]\noption = "x"\n', "'x' is no option of type path or str"),
        (
            HEAD + FEATURE + OPTION + '[[feature.file]]\noption = "o"\n',
            "'o' is no option of type path or str",
        ),
        (HEAD + FEATURE + FILE + "facts = 5\n", "facts must be a table"),
        (HEAD + FEATURE + FILE + 'facts = { "a.b" = "t" }\n', "a.b takes {tensor, axis}, got t"),
        (HEAD + FEATURE + FILE + 'facts = { "a.b" = { tensor = "t" } }\n', "a.b takes {tensor, axis}"),
        (HEAD + FEATURE + FILE + 'facts = { "a.b" = { tensor = "t", axis = "0" } }\n', "a.b takes"),
        (HEAD + FEATURE + FILE + 'facts = { "a.b" = { tensor = 1, axis = 0 } }\n', "a.b takes"),
        (HEAD + FEATURE + FILE + "fact = 1\n", "unknown key 'fact'; did you mean facts"),
        # family and models
        (FAMILY_MANIFEST.replace("[family]\n", '[family]\nstate = "later"\n'), '"unavailable: REASON"'),
        (FAMILY_MANIFEST.replace("{ value = true }", "{ by_variant = 5 }"), "{value} or {by_variant}"),
        (FAMILY_MANIFEST.replace("{ value = true }", "[]"), "a list of these"),
        (FAMILY_MANIFEST.replace("{ value = true }", '["transformer.a", 1]'), "a list of these"),
        (FAMILY_MANIFEST.replace("{ value = true }", '["transformer"]'), "a component and a key"),
        (
            FAMILY_MANIFEST.replace("{ value = true }", "{ by_variant = { toi = 5 } }"),
            "model.lossy_attention names an unknown variant 'toi'; did you mean toy",
        ),
        (MODEL + "remote = 1\n", "remote must be true or false"),
        (MODEL + 'remote = true\npath = "x"\n', "one of path, profile and remote"),
        (MODEL + 'path = "x"\n[model.profile]\npipeline = "P"\n', "one of path, profile and remote"),
        (MODEL + "profile = 5\n", "profile must be a table"),
        (MODEL + '[model.profile]\ndtype = "x"\n', "model 'tiny', profile: pipeline is missing"),
        (PROFILE + "parameters = 0\n", "parameters must be 1 or more"),
        (PROFILE + 'parameters = "2B"\n', "parameters must be a whole number"),
        (PROFILE + "modules = 5\n", "modules must be a list of texts"),
        (PROFILE + "[model.profile.config]\ntransformer = 5\n", "config.transformer must be a table with"),
        (
            PROFILE + "[model.profile.config.vae]\nz_dim = 5\n",
            "config.vae must be a table with the component's class",
        ),
        (PROFILE + "[model.profile.official]\nsteps = 5\n", "official: unknown key 'steps'"),
        (PROFILE + '[model.profile.official]\nnum_frames = "a"\n', "num_frames must be a finite number"),
        (PROFILE + "[model.profile.official]\nsizes = [480, 832]\n", "sizes is a list of [height, width]"),
        (
            PROFILE + "[model.profile.official]\nsizes = [[480.0, 832]]\n",
            "sizes is a list of [height, width]",
        ),
        # rules
        (
            HEAD + FEATURE + RULE + 'aggregate = "mean"\neffect = "takes"\n' + TOTAL,
            "unknown aggregate 'mean'",
        ),
        (HEAD + FEATURE + RULE + 'aggregate = "sum"\neffect = "melts"\n' + TOTAL, "carries one number"),
        (HEAD + FEATURE + RULE + 'aggregate = "sum"\npair = ["takes", "melts"]\n', "carries one number"),
        (HEAD + FEATURE + RULE + 'aggregate = "sum"\neffect = "takes"\n', "needs = { fact"),
        (
            HEAD
            + FEATURE
            + RULE.replace("forbid", "untested")
            + 'aggregate = "sum"\neffect = "takes"\n'
            + TOTAL,
            "has the level forbid",
        ),
        (
            HEAD + FEATURE + RULE + 'aggregate = "sum"\neffect = "takes"\n' + TOTAL.replace("total", "sum"),
            "an option 'sum' that is not declared",
        ),
        (HEAD + FEATURE + RULE + 'effect = "melts"\n' + TOTAL, "an option 'total' that is not declared"),
        (HEAD + FEATURE + RULE + 'when = { fact = "a", eq = 1 }\n', "needs = { fact"),
        (
            HEAD + FEATURE + RULE + 'effect = "melts"\nwhen = { fact = "a", eq = 1 }\n' + NEEDS,
            "a pair of two effects, a slot, one effect, or when over facts",
        ),
        (HEAD + FEATURE + RULE + 'when = { fact = "a", eq = 1 }\n' + NEEDS, "introduces"),
        (HEAD + FEATURE + RULE + 'when = { fact = "a" }\n' + NEEDS, "when: a condition needs an operator"),
        (
            HEAD + FEATURE + RULE + 'effect = "melts"\nneeds = { fact = "a", is = 1 }\n',
            "unknown operator 'is'",
        ),
        (HEAD + FEATURE + RULE + 'effect = "melts"\nneeds = "a"\n', "needs must be a table"),
        (
            HEAD + FEATURE + RULE + 'effect = "melts"\ninvolves = "a"\n' + NEEDS,
            "involves must be a list of texts",
        ),
    ],
)
def test_a_wrong_form_is_one_line_that_names_the_file_and_the_place(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert words in message
    assert message.startswith(str(tmp_path / "wf-plugin.toml"))
    assert caught.value.where or "rule A" in message, "the table is named"
    assert "\n" not in message


def test_a_reason_has_no_placeholder_that_nobody_fills(tmp_path: Path) -> None:
    condition = '[[feature.condition]]\nfact = "a"\neq = 1\nreason = "it is {what}"\n'
    with pytest.raises(ManifestError, match=r"placeholder \{what\} that nobody fills; there is \{value\}"):
        load(tmp_path, HEAD + FEATURE + condition)
    pair = RULE.replace('reason = "r"', 'reason = "{who} clash"') + 'pair = ["melts", "compiles"]\n'
    with pytest.raises(ManifestError, match=r"placeholder \{who\}"):
        load(tmp_path, HEAD + FEATURE + pair)
