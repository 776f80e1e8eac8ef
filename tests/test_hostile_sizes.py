"""Much of everything: whatever the sizes, an answer or a refusal comes within seconds, and it can be read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.hostile import said, within
from support.plugins import write_plugin
from wf_core import BadInput, Host, Refused
from wf_core.cli.settings import parse_value, read_json_object
from wf_core.facts import Facts
from wf_core.manifests.conditions import Condition
from wf_core.manifests.effects import Effect, is_word
from wf_core.manifests.options import TYPES, BadValue, OptionDecl
from wf_core.names import did_you_mean, normalise
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.plugins.selection import Selection
from wf_core.resolving.resolve import resolve
from wf_core.resolving.saved import changed_since

FACTS = Facts.of({"model.family": "x", "model.id": "x", "model.here": True, "process.world": 7}, "test")
FAMILY = 'kind = "model-family"\n[family]\nname = "x"\nseams = ["stack"]\ntransformer_classes = { X = "x" }\n'
FEATURE = """
[[feature]]
name = "{name}"
tier = "exact"
seams = ["stack"]
evidence = [{{ counter = "n" }}]
{more}
[[switch]]
name = "{switch}"
feature = "{name}"
form = "flag"
"""


def feature(name: str, more: str = "") -> str:
    return FEATURE.format(name=name, switch=name.replace("-", "_"), more=more)


def catalog(root: Path, plugins: dict[str, str]) -> Catalog:
    for name, manifest in {"x": FAMILY, **plugins}.items():
        write_plugin(root, name, manifest, "")
    discovery = discover([str(root)], {})
    assert all(len(record.reason) < 5000 for record in discovery.plugins)
    assert [r.reason for r in discovery.plugins if r.state == "broken" and "TimeoutError" in r.reason] == []
    return Catalog.of(discovery)


def answered(request: dict[str, Any], catalog: Catalog, seconds: float = 60) -> str:
    with within(seconds):
        try:
            return "legal" if resolve(request, FACTS, catalog) else ""
        except (BadInput, Refused) as error:
            return said(error)


def test_a_manifest_of_five_thousand_conditions_and_options(tmp_path: Path) -> None:
    """Everything unmet, so that everything is told."""
    rows = "".join(
        f'[[feature.condition]]\noption = "o{n}"\neq = {n}\nreason = "r{n} {{value}}"\n' for n in range(5000)
    )
    options = "".join(f'[[feature.option]]\nname = "o{n}"\ntype = "int"\n' for n in range(5000))
    with within(60):
        found = catalog(tmp_path, {"a": 'kind = "fusion"\n' + feature("a", options + rows)})
    met = {f"a.o{n}": n for n in range(150)}
    assert "4849 more reasons" in answered({"a": True, **met}, found, 120)


def test_a_plan_of_thousands_of_conditions_is_compared(tmp_path: Path) -> None:
    rows = "".join(f'[[feature.condition]]\nfact = "f{n}"\neq = {n}\nreason = "r{n}"\n' for n in range(3000))
    found = catalog(tmp_path, {"a": 'kind = "fusion"\n' + feature("a", rows)})
    plan = resolve({"a": True}, FACTS, found)
    with within(5):
        assert changed_since(plan, found) == ()


@pytest.mark.parametrize("count", [10_000, 200])
def test_a_request_of_many_keys(host: Host, count: int) -> None:
    keys = {f"feature_cash_{n}": [n] * 5 for n in range(count)}
    with within(120), pytest.raises((BadInput, Refused)) as refused:
        host.resolve("tiny-wan", keys)
    said(refused.value)
    assert ("it takes 200 at most" in str(refused.value)) == (count > 200)


def rivals(number: int) -> str:
    """A feature that answers to every shared name, with effects and rules about those of all others."""
    name = f"p{number}"
    selects = "".join(
        f'{{ switch = "{switch}", values = ["{name}"], groups = ["auto"] }}, '
        for switch in ("attention_backend", "feature_cache", "quantization")
    )
    rules = "".join(
        f'[[rule]]\ncode = "R{number}-{n}"\nlevel = "forbid"\npair = ["w{number}", "{other}"]\nreason = "r"\n'
        for n, other in enumerate(["lossy", "compiles", "occupies-ranks", f"w{number}"])
    )
    more = f'effects = ["w{number}", "occupies-ranks({number % 3 + 2})"]\nselect = [{selects}]'
    return f'kind = "fusion"\n{feature(name, more)}[[effect]]\nname = "w{number}"\ndoc = "d"\n{rules}'


KEYS = ("attention_backend", "feature_cache", "quantization")


def test_three_hundred_plugins_with_rules(tmp_path: Path) -> None:
    with within(120):
        found = catalog(tmp_path, {f"p{number}": rivals(number) for number in range(300)})
    assert {record.state for record in found.records} == {"available"}
    for request in (
        {key: f"p{n}" for n, key in enumerate(KEYS)},
        {f"p{n}": True for n in range(20)},
        {"p1": True},
    ):
        assert answered(request, found)


def test_many_features_that_answer_to_one_name_and_clash(tmp_path: Path) -> None:
    """The search over what they could be is given up in time; each of them can be named."""
    found = catalog(tmp_path, {f"p{number}": rivals(number) for number in range(60)})
    for count in (1, 2, 3):
        assert answered(dict.fromkeys(KEYS[:count], "auto"), found, 120)
    assert "more reasons" in answered({f"p{n}": True for n in range(60)}, found, 120)


def test_many_plugins_that_share_every_code(tmp_path: Path) -> None:
    rules = "".join(
        f'[[rule]]\ncode = "R{n}"\nlevel = "forbid"\nslot = "s{n}"\nreason = "r"\n' for n in range(20)
    )
    with within(120):
        found = catalog(
            tmp_path, {f"p{n}": f'kind = "fusion"\n{feature(f"p{n}")}{rules}' for n in range(100)}
        )
    assert {record.state for record in found.records if record.name != "x"} == {"broken"}


# --- texts -----------------------------------------------------------------------------------------------------------

LONG = 1_000_000
TEXTS = [
    "a" * LONG, "-" * LONG, " " * LONG, "1" * LONG, "1" + " " * LONG + "x", "a-" * (LONG // 2), "(" * LONG,
    "a(" * (LONG // 2), "," * LONG, "\t1" * (LONG // 2), "." * LONG, "1." * (LONG // 2), "a" * LONG + "!", "[" * LONG,
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_reader_of_text_takes_more_than_its_length(tmp_path: Path, text: str) -> None:
    """Every converter, pattern and suggestion, on a million characters that nearly fit."""
    with within(10):
        for kind in TYPES:
            option = OptionDecl("o", kind, choices=("a" * LONG, "b") if kind == "choice" else ())
            try:
                option.convert(text, "o")
            except BadValue as error:
                said(error)
        did_you_mean(text, [text + "x", "b" * LONG, *"abc"]), normalise(text), is_word(text)
        try:
            Effect.parse(text, {})
        except ValueError:
            pass
        Selection.from_environ({"WF_BLOCK": text, "WF_ONLY": text[:50]}, [])
        try:
            parse_value(text)
        except BadInput as error:
            said(error)
        condition = Condition.parse({"fact": "model.id", "ge": "1.0", "reason": "r {value}" * 1000})
        verdict = condition.judge(Facts.of({"model.id": text}, "test"), {})
        assert len(verdict.reason) < 1_000_000


def test_a_key_that_is_given_twice_among_many(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{" + ", ".join(f'"k{n}": 1' for n in [*range(300_000), 299_999]) + "}")
    with within(5), pytest.raises(BadInput, match="'k299999' is given twice"):
        read_json_object(path)


SOURCES = [
    path for path in Path(__file__).resolve().parents[1].glob("**/src/**/*.py") if ".venv" not in path.parts
]
NESTED = re.compile(r"\([^()]*\w[*+]\)[*+]|\\s\*[^\"']*\)?\?\\s\*")


def test_no_pattern_repeats_a_repetition() -> None:
    """``(a+)+`` takes exponential time, and two runs of blanks with nothing certain between them the square."""
    calls = re.compile(
        r're\.(?:compile|match|fullmatch|search|sub|split|findall)\(\s*r?f?("(?:[^"\\]|\\.)*")'
    )
    found = [pattern for path in SOURCES for pattern in calls.findall(path.read_text())]
    assert len(found) > 5
    assert [pattern for pattern in found if NESTED.search(pattern)] == []


def test_the_message_of_a_refusal_is_bounded(host: Host) -> None:
    values = {
        "feature_cache": "x" * LONG,
        "teacache": "x" * LONG,
        "goal": "x" * LONG,
        "no_such_key": ["x" * LONG],
    }
    nested = {"feature_cache": {"algorithm": "teacache", "y" * LONG: 1}}
    for request in (nested, *({key: value} for key, value in values.items())):
        with within(10), pytest.raises((BadInput, Refused)) as refused:
            host.resolve("tiny-wan", request)
        said(refused.value)
        if isinstance(refused.value, Refused):
            assert len(refused.value.refusal.explain()) < 50_000
            assert json.dumps(refused.value.refusal.to_json())
