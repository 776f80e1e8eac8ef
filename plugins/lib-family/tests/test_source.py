"""Open forwards are offered where the stock source is a tested one, and nowhere else."""

from __future__ import annotations

import sys

from wf_lib_family.source import TestedSources, source_hash


class Stock:
    """Stands for a class of diffusers."""


HERE = sys.modules[__name__]


def sources(*known: str) -> TestedSources:
    return TestedSources((HERE,), {"Stock": frozenset(known)})


def test_the_tested_source_and_the_sessions_subclass_of_it_fit() -> None:
    own = type("Stock", (Stock,), {"__module__": Stock.__module__})
    assert sources(source_hash(Stock)).why("a block", [Stock(), own()]) == ""


def test_another_source_is_named() -> None:
    assert (
        sources("0" * 64).why("a block", [Stock()]) == "untested diffusers version: source of Stock differs"
    )
    assert "source of Absent differs" in sources().untested("Absent")


def test_a_foreign_class_is_named() -> None:
    class Other:
        pass

    found = sources(source_hash(Stock)).why("a block", [Stock(), Other()])
    assert found == "a block is of class Other, which is not diffusers' own"


def test_a_source_that_cannot_be_read_is_not_a_tested_one() -> None:
    assert source_hash(len) == ""
