"""Options convert where the meaning is plain, and refuse with one line where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wf_core.manifests.options import BadValue, DefaultWith, OptionDecl
from wf_core.values import FrozenMap


def decl(kind: str, **fields: Any) -> OptionDecl:
    return OptionDecl("x", kind, "doc", **fields)


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        (decl("bool"), True, True),
        (decl("bool"), "false", False),
        (decl("int"), 4, 4),
        (decl("int"), "4", 4),
        (decl("int"), 4.0, 4),
        (decl("float"), "0.1", 0.1),
        (decl("float"), 1, 1.0),
        (decl("str"), "a b", "a b"),
        (decl("str"), 5, "5"),
        (decl("choice", choices=("packed", "split")), "Packed", "packed"),
        (decl("choice", choices=(1, 2)), "2", 2),
        (decl("ints", length=2), "34,34", (34, 34)),
        (decl("ints"), [18, 16], (18, 16)),
        (decl("floats"), "[0.5, 1]", (0.5, 1.0)),
        (decl("path"), Path("a/b"), "a/b"),
        (decl("mapping"), {"b": [1], "a": 2}, FrozenMap({"a": 2, "b": (1,)})),
        (decl("mapping"), '{"a": 1}', FrozenMap({"a": 1})),
        (decl("int", default=7), None, 7),
    ],
)
def test_converts(option: OptionDecl, given: Any, expected: Any) -> None:
    converted = option.convert(given, "key")
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        (decl("bool"), 1, "true or false"),
        (decl("int"), True, "whole number"),
        (decl("int"), 1.5, "whole number"),
        (decl("int"), "1.5", "whole number"),
        (decl("int"), float("inf"), "whole number"),
        (decl("float"), False, "finite"),
        (decl("float"), float("nan"), "finite"),
        (decl("float"), "inf", "finite"),
        (decl("float"), 10**400, "finite"),
        (decl("float", above=0), 0.0, "0 < x"),
        (decl("float", min=0, max=1), 1.5, "0 <= x <= 1"),
        (decl("floats"), [1.0, float("nan")], "finite"),
        (decl("ints"), [1, True], "whole numbers"),
        (decl("ints"), "a,b", "whole numbers"),
        (decl("ints"), 3, "list"),
        (decl("ints", length=2), "34", "2 numbers"),
        (decl("ints", min=1), [4, 0], "out of range"),
        (decl("str"), [1], "text"),
        (decl("path"), " ", "path"),
        (decl("mapping"), "{", "mapping"),
        (decl("mapping"), {1: 2}, "mapping"),
        (decl("choice", choices=("packed", "split")), "pakced", "did you mean packed"),
        (decl("choice", choices=(1, 2)), True, "one of 1, 2"),
    ],
)
def test_refuses_in_one_line_that_names_the_key(option: OptionDecl, given: Any, words: str) -> None:
    with pytest.raises(BadValue) as caught:
        option.convert(given, "cache.threshold")
    assert str(caught.value).startswith("cache.threshold: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


DTYPE = decl("choice", choices=("bfloat16", "float32"), spellings=FrozenMap({"bf16": "bfloat16"}))


@pytest.mark.parametrize("given", ["bfloat16", "bf16", "BF16", " bf16 "])
def test_a_spelling_stands_for_its_choice(given: str) -> None:
    assert DTYPE.convert(given, "dtype") == "bfloat16"


def test_a_spelling_is_no_choice_of_its_own() -> None:
    assert DTYPE.describe_range() == "bfloat16 (bf16) | float32"
    with pytest.raises(BadValue, match="expects one of bfloat16, float32, got bf61; did you mean bf16"):
        DTYPE.convert("bf61", "dtype")
    with pytest.raises(BadValue, match="expects one of bfloat16, float32, got true"):
        DTYPE.convert(True, "dtype")


def test_a_default_beside_an_effect_stands_back_where_one_of_its_options_is_given() -> None:
    beside = (DefaultWith("melts", "b", unless=("other",)), DefaultWith("drips", "c"))
    option = decl("str", default="a", default_with=beside)
    assert option.default_beside(frozenset()) == "a"
    assert option.default_beside(frozenset({"melts", "drips"})) == "b"
    assert option.default_beside(frozenset({"drips"})) == "c"
    assert option.default_beside(frozenset({"melts"}), ("other",)) == "a"
    assert option.default_beside(frozenset({"melts"}), ("another",)) == "b"


def test_an_unknown_type_is_a_mistake_of_the_declaration() -> None:
    with pytest.raises(ValueError, match="type"):
        OptionDecl("x", "number", "doc")


def test_range_in_words() -> None:
    assert decl("float", above=0, max=1).describe_range() == "0 < x <= 1"
    assert decl("choice", choices=("a", "b")).describe_range() == "a | b"
    assert decl("ints", length=2).describe_range() == "2 numbers"
