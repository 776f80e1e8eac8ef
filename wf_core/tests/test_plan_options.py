"""Options that look at the rest of the request: defaults beside an effect, and values that take a fact's place."""

from __future__ import annotations

from typing import Any

import pytest

from wf_core.plugins.catalog import Catalog
from wf_core.resolving.resolve import resolve

from .conftest import Site
from .test_resolve import MODEL, catalog, codes, feature, refusal

COMPILER = """
[[feature.option]]
name = "mode"
type = "choice"
choices = ["plain", "careful", "fast"]
default = "plain"
default_with = [{ effect = "captures-graph", value = "careful", unless = ["settings"] }]
[[feature.option]]
name = "settings"
type = "mapping"
"""


@pytest.fixture
def compilers(site: Site) -> Catalog:
    site.plugin("compiler", feature("compiler", COMPILER, "execution-mode"))
    site.plugin("graph", feature("graph", 'effects = ["captures-graph@denoiser"]\nstage = "graph"'))
    return catalog(site)


@pytest.mark.parametrize(
    ("request_", "mode"),
    [
        ({"compiler": True}, "plain"),
        ({"compiler": True, "graph": False}, "plain"),
        ({"compiler": True, "graph": True}, "careful"),
        ({"graph": True, "compiler": {"mode": "fast"}}, "fast"),
        ({"graph": True, "compiler": {"mode": "plain"}}, "plain"),
        ({"graph": True, "compiler": {"settings": {"a": 1}}}, "plain"),
    ],
)
def test_a_default_depends_on_the_effects_of_the_others(
    compilers: Catalog, request_: dict[str, Any], mode: str
) -> None:
    planned = resolve(request_, MODEL, compilers).feature("compiler")
    assert planned is not None
    assert planned.option("mode") == mode


def test_a_features_own_effect_is_none_of_the_others(site: Site) -> None:
    both = COMPILER.replace(
        '\n[[feature.option]]\nname = "mode"',
        '\neffects = ["captures-graph"]\n[[feature.option]]\nname = "mode"',
    )
    site.plugin("compiler", feature("compiler", both, "execution-mode"))
    [planned] = resolve({"compiler": True}, MODEL, catalog(site)).features
    assert planned.option("mode") == "plain"


def test_the_default_that_is_taken_is_judged_too(site: Site) -> None:
    refusing = 'option = "mode"\nne = "careful"\ncode = "TOY-2"\nreason = "{value} is not there yet"\n'
    condition = "[[feature.condition]]\n" + refusing
    site.plugin("compiler", feature("compiler", COMPILER + condition, "execution-mode"))
    site.plugin("graph", feature("graph", 'effects = ["captures-graph@denoiser"]\nstage = "graph"'))
    found = catalog(site)
    assert resolve({"compiler": True}, MODEL, found).features
    [violation] = refusal({"compiler": True, "graph": True}, MODEL, found).violations
    assert (violation.code, violation.reason) == ("TOY-2", "careful is not there yet")


CAST = """
[[feature.option]]
name = "dtype"
type = "choice"
choices = ["bfloat16", "float32"]
spellings = { bf16 = "bfloat16" }
sets = "model.dtype"
"""
HALF = '[[feature.condition]]\nfact = "model.dtype"\neq = "bfloat16"\nreason = "takes bfloat16, this is {value}"\n'


@pytest.fixture
def casts(site: Site) -> Catalog:
    site.plugin("cast", feature("cast", CAST))
    site.plugin("half", feature("half", HALF))
    return catalog(site)


def test_the_others_are_judged_by_the_value_that_takes_a_facts_place(casts: Catalog) -> None:
    full = MODEL.with_({"model.dtype": "float32"})
    assert [v.reason for v in refusal({"half": True}, full, casts).violations] == [
        "takes bfloat16, this is float32"
    ]
    plan = resolve({"half": True, "cast": {"dtype": "bf16"}}, full, casts)
    assert plan.feature("cast").option("dtype") == "bfloat16"  # type: ignore[union-attr]
    assert ("model.dtype", "bfloat16", "the request's cast") in plan.facts_used


def test_it_takes_the_facts_place_for_better_or_worse(casts: Catalog) -> None:
    half = MODEL.with_({"model.dtype": "bfloat16"})
    assert resolve({"half": True, "cast": True}, half, casts).features, "no value is given, so nothing is set"
    found = refusal({"half": True, "cast": {"dtype": "float32"}}, half, casts)
    assert codes(found) == ["WF-F001"]
