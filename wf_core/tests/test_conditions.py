"""Conditions: a closed set of operators, three answers, and messages for conditions that are written wrongly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wf_core.facts import Facts
from wf_core.manifests.conditions import BadCondition, Condition

FACTS = Facts.of(
    {
        "model.heads": 12,
        "model.id": "Wan-X",
        "device.type": "cuda",
        "model.names": ["a", "b"],
        "model.none": None,
    },
    "test",
)
OPTIONS = {"size": 34, "stride": 18, "mode": None, "degree": 5, "tile": (34, 34), "step": (18, 40)}
TABLES = {"presets": frozenset({"wan-x", "wan-y"})}


def judge(data: dict[str, Any], facts: Facts = FACTS) -> str:
    return Condition.parse({**data, "reason": "because."}).judge(facts, OPTIONS, TABLES).state


@pytest.mark.parametrize(
    ("data", "state"),
    [
        ({"fact": "model.heads", "eq": 12}, "met"),
        ({"fact": "model.heads", "ne": 12}, "unmet"),
        ({"fact": "device.type", "in": ["cuda", "cpu"]}, "met"),
        ({"fact": "model.heads", "lt": 12}, "unmet"),
        ({"fact": "model.heads", "le": 12}, "met"),
        ({"fact": "model.heads", "gt": 11, "ge": 12}, "met"),
        ({"fact": "model.heads", "gt": 11, "lt": 12}, "unmet"),
        ({"fact": "model.heads", "divisible_by": 4}, "met"),
        ({"fact": "model.heads", "divisible_by": {"option": "degree"}}, "unmet"),
        ({"option": "stride", "le": {"option": "size"}}, "met"),
        ({"option": "size", "le": {"option": "stride"}}, "unmet"),
        ({"fact": "model.names", "contains_all": ["a"]}, "met"),
        ({"fact": "model.names", "contains_all": ["a", "c"]}, "unmet"),
        ({"fact": "model.id", "in_table": "presets"}, "met"),
        ({"fact": "device.type", "in_table": "presets"}, "unmet"),
        ({"option": "tile", "ge": {"option": "step"}}, "unmet"),
        ({"option": "step", "le": {"option": "tile"}}, "unmet"),
        ({"option": "step", "le": 40}, "met"),
        ({"option": "step", "lt": 40}, "unmet"),
        ({"option": "step", "le": [40]}, "unmet"),
        ({"option": "mode", "present": False}, "met"),
        ({"option": "mode", "present": True}, "unmet"),
        ({"option": "mode", "lt": 3}, "unmet"),
        ({"fact": "model.none", "present": False}, "met"),
        ({"fact": "model.none", "ge": 3}, "unmet"),
        ({"fact": "device.type", "ge": 3}, "unmet"),
        ({"fact": "run.height", "eq": 3}, "unknown"),
        ({"fact": "model.heads", "eq": {"fact": "run.height"}}, "unknown"),
        ({"any_of": [{"fact": "run.height", "eq": 1}, {"fact": "model.heads", "eq": 12}]}, "met"),
        ({"any_of": [{"fact": "run.height", "eq": 1}, {"fact": "model.heads", "eq": 1}]}, "unknown"),
        ({"any_of": [{"option": "size", "eq": 1}, {"fact": "model.heads", "eq": 1}]}, "unmet"),
        ({"all_of": [{"fact": "run.height", "eq": 1}, {"fact": "model.heads", "eq": 1}]}, "unmet"),
        ({"all_of": [{"fact": "run.height", "eq": 1}, {"fact": "model.heads", "eq": 12}]}, "unknown"),
        ({"all_of": [{"option": "size", "eq": 34}, {"fact": "model.heads", "eq": 12}]}, "met"),
        ({"sum": [{"option": "size"}, {"option": "stride"}], "eq": 52}, "met"),
        ({"sum": [{"option": "size"}, {"option": "stride"}], "lt": 52}, "unmet"),
        ({"sum": [{"option": "degree"}, {"fact": "model.heads"}, 1], "le": 18}, "met"),
        ({"fact": "model.heads", "lt": {"sum": [{"option": "degree"}, 7]}}, "unmet"),
        ({"fact": "model.heads", "lt": {"sum": [{"option": "degree"}, 8]}}, "met"),
        ({"option": "size", "divisible_by": {"sum": [{"fact": "model.heads"}, {"option": "degree"}]}}, "met"),
        ({"sum": [{"option": "size"}, {"option": "mode"}], "ge": 0}, "unmet"),
        ({"sum": [{"option": "size"}, {"option": "mode"}], "present": False}, "met"),
        ({"sum": [{"option": "size"}, {"fact": "model.none"}], "ge": 0}, "unmet"),
        ({"sum": [{"option": "size"}, {"fact": "model.id"}], "ge": 0}, "unmet"),
        ({"sum": [{"option": "size"}, {"fact": "run.height"}], "ge": 0}, "unknown"),
        ({"fact": "model.heads", "eq": {"sum": [{"fact": "run.height"}, 1]}}, "unknown"),
    ],
)
def test_three_answers(data: dict[str, Any], state: str) -> None:
    assert judge(data) == state


def test_versions_are_ordered_as_versions() -> None:
    facts = Facts.of({"package.torch": "2.10.0"}, "test")
    assert judge({"fact": "package.torch", "ge": "2.9"}, facts) == "met"
    assert judge({"fact": "package.torch", "lt": "2.9"}, facts) == "unmet"


def test_the_reason_shows_the_value_that_was_found() -> None:
    condition = Condition.parse(
        {"fact": "model.heads", "le": 8, "reason": "at most 8 heads, this model has {value}"}
    )
    assert condition.judge(FACTS, {}).reason == "at most 8 heads, this model has 12"


def test_unknown_names_the_missing_facts_in_order() -> None:
    data = {"all_of": [{"fact": "run.b", "eq": 1}, {"fact": "run.a", "eq": 1}], "reason": "r."}
    assert Condition.parse(data).judge(FACTS, {}).missing == ("run.b", "run.a")


def test_a_sum_is_shown_as_what_it_comes_to_and_names_all_that_it_adds() -> None:
    data = {
        "sum": [{"option": "size"}, {"option": "stride"}],
        "lt": {"fact": "model.heads"},
        "reason": "{value}!",
    }
    condition = Condition.parse(data)
    assert condition.judge(FACTS, OPTIONS).reason == "52!"
    assert condition.judge(FACTS, {"size": 34}).reason == "not given!"
    assert [ref.name for ref in condition.refs()] == ["size", "stride", "model.heads"]
    two = {
        "sum": [{"fact": "run.b"}, {"fact": "run.a"}],
        "eq": {"sum": [{"fact": "run.c"}, 1]},
        "reason": "r.",
    }
    assert Condition.parse(two).judge(FACTS, {}).missing == ("run.b", "run.a")
    assert Condition.parse(two).judge(FACTS.with_(run__a=1, run__b=1), {}).missing == ("run.c",)


def test_a_sum_that_no_number_can_be_is_no_number() -> None:
    condition = Condition.parse({"sum": [{"fact": "run.scale"}, 10**400], "lt": 3, "reason": "r"})
    assert condition.judge(Facts.of({"run.scale": 5.0}, "test"), {}).state == "unmet"


def test_a_sum_comes_back_from_json() -> None:
    data = {"sum": [{"option": "size"}, 3], "le": {"sum": [{"fact": "model.heads"}, -1]}, "reason": "r."}
    condition = Condition.parse(data)
    assert Condition.from_json(json.loads(json.dumps(condition.to_json()))) == condition
    for parts in ([], [1, 2], [True], ["size"], [{"kind": "sum", "name": "x"}], None, [[1]]):
        saved = condition.to_json()
        saved["subject"] = {"sum": parts}
        with pytest.raises((BadCondition, LookupError, TypeError)):
            Condition.from_json(saved)


def test_a_bound_condition_needs_no_tables() -> None:
    condition = Condition.parse({"fact": "model.id", "in_table": "presets", "reason": "r."}).bind(TABLES)
    assert condition.judge(FACTS, {}).state == "met"
    assert hash(condition) == hash(
        Condition.parse({"fact": "model.id", "in_table": "presets", "reason": "r."}).bind(TABLES)
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"fact": "a", "eq": 1}, "needs a reason"),
        ({"fact": "a", "eq": 1, "reason": "  "}, "needs a reason"),
        ({"fact": "a", "equals": 1, "reason": "r"}, "unknown operator 'equals'"),
        ({"fact": "a", "reason": "r"}, "needs an operator"),
        ({"eq": 1, "reason": "r"}, "exactly one fact or option"),
        ({"fact": "a", "option": "b", "eq": 1, "reason": "r"}, "exactly one fact or option"),
        ({"any_of": [], "reason": "r"}, "list of conditions"),
        ({"any_of": [{"fact": "a", "eq": 1}], "eq": 1, "reason": "r"}, "stands alone"),
        ({"fact": "a", "divisible_by": 0, "reason": "r"}, "above 0"),
        ({"fact": "a", "present": 1, "reason": "r"}, "true or false"),
        ({"fact": "a", "in": "cuda", "reason": "r"}, "a list"),
        ({"sum": [{"fact": "a"}], "eq": 1, "reason": "r"}, "list of two or more"),
        ({"sum": {"fact": "a"}, "eq": 1, "reason": "r"}, "list of two or more"),
        ({"sum": [1, 2], "eq": 3, "reason": "r"}, "adds numbers alone"),
        ({"sum": [{"fact": "a"}, 1.5], "eq": 1, "reason": "r"}, "whole numbers"),
        ({"sum": [{"fact": "a"}, True], "eq": 1, "reason": "r"}, "whole numbers"),
        ({"sum": [{"fact": "a"}, {"sum": [{"fact": "b"}, 1]}], "eq": 1, "reason": "r"}, "whole numbers"),
        ({"sum": [{"fact": "a"}, {"option": "b", "fact": "c"}], "eq": 1, "reason": "r"}, "whole numbers"),
        ({"sum": [{"fact": "a"}, 1], "fact": "a", "eq": 1, "reason": "r"}, "exactly one fact or option"),
        (
            {"fact": "a", "eq": {"sum": [{"fact": "a"}, 1], "fact": "b"}, "reason": "r"},
            "one fact, option or sum",
        ),
    ],
)
def test_a_wrong_condition_is_refused_with_what_is_wrong(data: dict[str, Any], words: str) -> None:
    with pytest.raises(BadCondition, match=words):
        Condition.parse(data)
