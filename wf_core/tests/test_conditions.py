"""Conditions: a closed set of operators, three answers, and messages for conditions that are written wrongly."""

from __future__ import annotations

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
    ],
)
def test_a_wrong_condition_is_refused_with_what_is_wrong(data: dict[str, Any], words: str) -> None:
    with pytest.raises(BadCondition, match=words):
        Condition.parse(data)
